"""A signal ends a command in order, with its code, and a closed terminal does not disturb that."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from services.launcher.end_on import end_on
end_on(signal.SIGTERM, 7)
end_on(signal.SIGHUP, 8)
try:
    Path(sys.argv[1]).touch()
    time.sleep(60)
finally:
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))  # again, as by a shell that hands on what it got
    print("stopping", flush=True)
    Path(sys.argv[1]).unlink()
"""


def started(directory: Path, again: str, **how: object) -> "subprocess.Popen[bytes]":
    up = directory / "up"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(up), again], cwd=ROOT, **how)  # type: ignore[call-overload]
    deadline_s = time.monotonic() + 30
    while not up.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("number", "again", "code", "ordered"),
    [
        (signal.SIGTERM, "SIGTERM", 7, False),  # a second one is haste
        (signal.SIGHUP, "SIGTERM", 7, False),
        (signal.SIGTERM, "SIGHUP", 8, False),
        (signal.SIGHUP, "SIGHUP", 8, True),
    ],
)
def test_the_end_comes_in_order_unless_it_is_asked_for_again(
    tmp_path: Path, number: signal.Signals, again: str, code: int, ordered: bool
) -> None:
    process = started(tmp_path, again, stdout=subprocess.DEVNULL)
    process.send_signal(number)
    assert process.wait(30) == code
    assert (tmp_path / "up").exists() is not ordered


def test_a_closed_terminal_is_no_fault(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = started(tmp_path, "SIGHUP", stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (8, b"")
    assert not (tmp_path / "up").exists()


def test_what_was_started_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    process = started(tmp_path, "SIGHUP", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7
