"""What dead processes left in a pod's shared memory.

`/dev/shm` of a pod lives as long as the pod, so segments of UCX, NCCL and NVSHMEM whose owners were killed stay over a
restart of the container, and fill it after a few.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from common.telemetry.logs import get_log

log = get_log(__name__)

_PROCESSES = Path("/proc")
_OUT_OF_SIGHT = (FileNotFoundError, ProcessLookupError, PermissionError)  # it ended, or is none of this pod's user


def clear_left_over(directory: Path) -> int:
    """Remove every file below `directory` that no live process has mapped or open; gives the bytes that came free.

    Only for a directory that belongs to this pod alone, before it has ranks: a file that its maker closed and means to
    open again looks left over too.
    """
    root = directory.resolve()
    held = set(_held(root))
    freed = 0
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink() and str(file) not in held:
            freed += file.stat().st_size
            file.unlink()
    if freed:
        log.info("cleared what dead processes left", directory=root, bytes=freed)
    return freed


def _held(root: Path) -> Iterator[str]:
    """Files below `root` in use by any process."""
    for process in _PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        yield from (name for name in (*_mapped(process), *_opened(process)) if name.startswith(f"{root}/"))


def _mapped(process: Path) -> list[str]:
    with suppress(*_OUT_OF_SIGHT):
        lines = (process / "maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return [line.split(maxsplit=5)[5] for line in lines if "/" in line]
    return []


def _opened(process: Path) -> list[str]:
    names = []
    with suppress(*_OUT_OF_SIGHT):
        for link in (process / "fd").iterdir():
            with suppress(*_OUT_OF_SIGHT):  # that one was closed meanwhile: it says nothing of the others
                names.append(str(link.readlink()))
    return names
