"""`tandem fetch`: a model directory from a web server, complete and verified.

The list of files is what ``sha256sum *`` writes. A file that is there with its right sum is left alone, a part of one
is continued, and a name appears only when its content is right. Several processes fill one directory together: each
takes files that no other is at, and at the end waits for those, so nobody who wants little waits for all.
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
from collections.abc import Iterator, Sequence
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
_ATTEMPTS = 5  # that bring nothing; one that brought bytes counts from the first again
_PAUSES_S = (1.0, 5.0, 15.0, 30.0)  # between them
_TIMEOUT_S = 60.0
_FINAL = (401, 403, 404)  # asking again changes nothing
_SUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True)
class Listed:
    """One file of the list."""

    name: str
    sha256: str


def run_fetch(url: str, sums: str, directory: Path, only: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: the list is not one, or names a file outside `directory`.
        DependencyUnavailable: the server did not give a file, or gave another one than the list says.
    """
    configure_logs("fetch")
    base = url.rstrip("/") + "/"
    directory.mkdir(parents=True, exist_ok=True)
    listed = read_sums(_text(base + sums), sums)
    files = [file for file in listed if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in only)]
    if not files:
        raise ConfigError(f"--only = {' '.join(only)}: matches no file of {base}{sums}")
    others = []
    for number, file in enumerate(files, 1):
        count = f"{number}/{len(files)}"
        with _alone_at(file, directory, wait=False) as free:
            if free:
                _fetch(base, file, directory, count)
            else:
                others.append((file, count))
    for file, count in others:
        log.info("another process is at it", file=file.name, count=count)
        with _alone_at(file, directory, wait=True):
            _fetch(base, file, directory, count)
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
    target, seal = directory / file.name, _beside(file, directory, "sha256")
    if target.exists() and _verified(target, seal, file.sha256):
        log.info("there", file=file.name, count=count)
        return
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        _whole(base + urllib.parse.quote(file.name), part, f"{count} {file.name}")
        if _sha256(part) == file.sha256:
            part.rename(target)
            seal.write_text(_seal(target, file.sha256), encoding="utf-8")
            log.info("fetched", file=file.name, count=count, bytes=target.stat().st_size)
            return
        part.unlink()
        log.warning("wrong checksum", file=file.name, count=count)
    raise DependencyUnavailable(f"{base}{file.name}: its SHA-256 is not {file.sha256}, {_ATTEMPTS} times")


def _whole(url: str, part: Path, what: str) -> None:
    """Download to the end, over breaks of the connection."""
    failed = 0
    while True:
        had = _length(part)
        try:
            _download(url, part, what)
        except (OSError, HTTPException) as error:
            failed = 1 if _length(part) > had else failed + 1
            _give_up_or_pause(url, failed, error)
        else:
            return


def _give_up_or_pause(url: str, failed: int, error: Exception) -> None:
    if failed == _ATTEMPTS or (isinstance(error, urllib.error.HTTPError) and error.code in _FINAL):
        raise DependencyUnavailable(f"{url}: {error}") from error
    log.warning("again", url=url, failed=failed, why=error)
    time.sleep(_PAUSES_S[failed - 1])


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _download(url: str, part: Path, what: str) -> None:
    have = _length(part)
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
    failed = 0
    while True:
        try:
            with _open(url, 0) as reply:
                return reply.read().decode()
        except (OSError, HTTPException) as error:
            failed += 1
            _give_up_or_pause(url, failed, error)


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


def _beside(file: Listed, directory: Path, ending: str) -> Path:
    return directory / f".{file.name.replace('/', '_')}.{ending}"


@contextmanager
def _alone_at(file: Listed, directory: Path, *, wait: bool) -> Iterator[bool]:
    """Whether this process is the only one at the file; with `wait` it comes to be."""
    with _beside(file, directory, "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
