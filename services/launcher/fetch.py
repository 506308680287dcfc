"""`tandem fetch`: a model directory from a web server, complete and verified.

The list of files is what ``sha256sum *`` writes. A file that is there with its right sum is left alone, a part of one
is continued, and a name appears only when its content is right. One process at a time fills a directory; others wait.
"""

import fcntl
import fnmatch
import hashlib
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from common.errors import ConfigError, DependencyUnavailable
from common.telemetry.logs import configure_logs, get_log

log = get_log(__name__)

TOKEN = "TANDEM_FETCH_TOKEN"  # environment: a bearer token
_PIECE_BYTES = 8 << 20
_TELL_EVERY_S = 10.0
_ATTEMPTS = 5
_TIMEOUT_S = 60.0
_SUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True)
class Listed:
    """One file of the list."""

    name: str
    sha256: str


def run_fetch(url: str, sums: str, directory: Path, only: str) -> None:
    """
    Raises:
        ConfigError: the list is not one, or names a file outside `directory`.
        DependencyUnavailable: the server did not give a file, or gave another one than the list says.
    """
    configure_logs("fetch")
    base = url.rstrip("/") + "/"
    directory.mkdir(parents=True, exist_ok=True)
    files = [file for file in read_sums(_text(base + sums), sums) if fnmatch.fnmatchcase(file.name, only)]
    if not files:
        raise ConfigError(f"--only = {only}: matches no file of {base}{sums}")
    with _alone_in(directory):
        for number, file in enumerate(files, 1):
            _fetch(base, file, directory, f"{number}/{len(files)}")
    log.info("complete", directory=directory, files=len(files))


def read_sums(text: str, source: str) -> list[Listed]:
    files = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _SUM_LINE.fullmatch(line.strip())
        name = match[2].removeprefix("./") if match else ""
        if not match or name.startswith("/") or ".." in Path(name).parts:
            raise ConfigError(
                f"{source}, line {number}: {line!r}: must be a SHA-256 sum and a name below the directory"
            )
        files.append(Listed(name, match[1]))
    return files


def _fetch(base: str, file: Listed, directory: Path, count: str) -> None:
    target, seal = directory / file.name, directory / f".{file.name.replace('/', '_')}.sha256"
    if target.exists() and _verified(target, seal, file.sha256):
        log.info("there", file=file.name, count=count)
        return
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _download(base + urllib.parse.quote(file.name), part, f"{count} {file.name}")
        except (OSError, HTTPException) as error:
            if attempt == _ATTEMPTS:
                raise DependencyUnavailable(f"{base}{file.name}: {error}") from error
            log.warning("again", file=file.name, attempt=attempt, why=error)
            time.sleep(min(2.0**attempt, 30.0) * 0.1)
            continue
        if _sha256(part) == file.sha256:
            part.rename(target)
            seal.write_text(_seal(target, file.sha256), encoding="utf-8")
            log.info("fetched", file=file.name, count=count, bytes=target.stat().st_size)
            return
        part.unlink()
        log.warning("wrong checksum", file=file.name, attempt=attempt)
    raise DependencyUnavailable(f"{base}{file.name}: its SHA-256 is not {file.sha256}, {_ATTEMPTS} times")


def _download(url: str, part: Path, what: str) -> None:
    have = part.stat().st_size if part.exists() else 0
    try:
        reply = _open(url, have)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # nothing is missing
                return
            raise
    with reply, part.open("ab" if reply.status == 206 else "wb") as out:
        done = have if reply.status == 206 else 0
        total = done + int(reply.headers.get("Content-Length", 0))
        told_s, begun_s, begun_bytes = time.monotonic(), time.monotonic(), done
        while piece := reply.read(_PIECE_BYTES):
            out.write(piece)
            done += len(piece)
            now_s = time.monotonic()
            if now_s - told_s >= _TELL_EVERY_S:
                told_s = now_s
                rate = (done - begun_bytes) / (now_s - begun_s)
                log.info("fetching", file=what, bytes=done, of_bytes=total, bytes_per_s=round(rate))
    if done < total:
        raise OSError(f"the server ended after {done} of {total} bytes")


def _open(url: str, first_byte: int) -> HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--from = {url}: must be http:// or https://")
    headers = {"Range": f"bytes={first_byte}-"} if first_byte else {}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    reply: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)
    return reply


def _text(url: str) -> str:
    try:
        with _open(url, 0) as reply:
            return reply.read().decode()
    except (OSError, HTTPException) as error:
        raise DependencyUnavailable(f"{url}: {error}") from error


def _verified(target: Path, seal: Path, sha256: str) -> bool:
    """Size and time stand for the content that was checked once: 700 GB are not read at each start of a pod."""
    if seal.exists() and seal.read_text(encoding="utf-8") == _seal(target, sha256):
        return True
    if _sha256(target) != sha256:
        return False
    seal.write_text(_seal(target, sha256), encoding="utf-8")
    return True


def _seal(target: Path, sha256: str) -> str:
    facts = target.stat()
    return f"{sha256} {facts.st_size} {facts.st_mtime_ns}\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    with (directory / ".fetch.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that fills the directory", directory=directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
