"""Left-over segments go, those of live processes stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.worker.shared_memory import clear_left_over

HOLDER = """
import mmap, os, sys
mapped, opened = (os.open(name, os.O_RDWR | os.O_CREAT) for name in sys.argv[1:])
os.ftruncate(mapped, 8192)
memory = mmap.mmap(mapped, 8192)
os.close(mapped)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    directory = tmp_path / "shm with a space"
    directory.mkdir()
    return directory


def test_segments_stay_while_their_process_lives_and_go_after_it_was_killed(shm: Path) -> None:
    mapped, opened = shm / "ucx_shm_posix_1", shm / "nccl-a"
    (shm / "nvshmem").mkdir()
    (shm / "nvshmem" / "heap").write_bytes(b"x" * 4096)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(mapped), str(opened)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder.stdout, holder.stdin:
        assert holder.stdout.readline() == b"ready\n"
        assert clear_left_over(shm) == 4096
        assert {file.name for file in shm.iterdir()} == {"ucx_shm_posix_1", "nccl-a", "nvshmem"}
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert clear_left_over(shm) == 8192
    assert [file.name for file in shm.iterdir()] == ["nvshmem"]


def test_a_process_that_closes_another_file_meanwhile_keeps_its_own(shm: Path) -> None:
    """This one does: it lists its descriptors by one that is closed when the links are read."""
    held = shm / "ucx_shm_posix_2"
    with held.open("wb") as file:
        file.write(b"x")
        file.flush()
        assert clear_left_over(shm) == 0
    assert held.exists()
    assert clear_left_over(shm) == 1


def test_a_process_that_cannot_be_looked_into_keeps_nothing_back(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shm / "left").write_bytes(b"x")

    def refused(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    assert clear_left_over(shm) == 1
