"""Ctrl-C as a terminal sends it: a command ends at once, in order, with the code 130 of one that was interrupted."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

import pytest

from tests.fakes.inference_server import Answer, Emission, InferenceServer

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
END_S = 5.0  # a thread that waits for the keyboard would last for ever
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A command of `tandem` on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self.settings = termios.tcgetattr(self._theirs)
        self.said = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", *arguments],
            cwd=ROOT, env=ENVIRONMENT, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs,
            preexec_fn=self._take_terminal,  # Ctrl-C reaches who holds the terminal
        )  # fmt: skip

    def _take_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._ours >= 0:
            os.close(self._ours)
        os.close(self._theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def hang_up(self) -> None:
        """Close it, of which the system tells the command."""
        os.close(self._ours)
        self._ours = -1

    def wait(self, timeout_s: float) -> int:
        """The exit code of a command that nobody hears any more."""
        return self._process.wait(timeout_s)

    def wait_for(self, text: str, timeout_s: float = 30.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.said:
            assert time.monotonic() < deadline_s, f"never said {text!r}: {self.said}"
            self._hear(0.05)

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def unread(self) -> int:
        """Bytes that were typed and that the next reader of the terminal would get."""
        return int.from_bytes(fcntl.ioctl(self._theirs, termios.FIONREAD, bytes(4)), sys.byteorder)

    def ends(self) -> int:
        """The exit code; whatever was said until then is heard, and the terminal is as it was."""
        deadline_s = time.monotonic() + END_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline_s, f"still there after {END_S:.0f} s: {self.said}"
            self._hear(0.05)
        while self._hear(0.0):
            pass
        assert termios.tcgetattr(self._theirs) == self.settings
        return int(self._process.returncode)

    def _hear(self, within_s: float) -> bool:
        if not select.select([self._ours], [], [], within_s)[0]:
            return False
        self.said += os.read(self._ours, 65536).decode()
        return True


@pytest.mark.parametrize(("key", "code"), [(CTRL_C, 130), (CTRL_D, 0)])
def test_chat_ends_at_once_at_its_prompt(key: bytes, code: int) -> None:
    with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server, Terminal("chat", "--at", server.address) as t:
        t.wait_for("you> ")
        t.press(b"hello\n")
        t.wait_for("you> hello\r\n\r\nyou> ")
        t.press(key)
        assert t.ends() == code
        assert "Traceback" not in t.said


def test_what_was_pasted_behind_an_empty_line_is_not_left_to_the_shell() -> None:
    with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server, Terminal("chat", "--at", server.address) as t:
        t.wait_for("you> ")
        t.press(b"\nrm precious\n")
        assert t.ends() == 0
        assert t.unread() == 0


def test_what_is_no_text_is_not_sent() -> None:
    with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server:
        command = [sys.executable, "-m", "services.cli"]
        asked = subprocess.run(
            [*command, "chat", "--at", server.address],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, input=b"\xff\xfe\nhello\n", check=True,
        )  # fmt: skip
        assert asked.stderr.decode() == "not sent: text = '\\udcff': UTF-8\n"
        assert len(server.servicer.received) == 1
        refused = subprocess.run(
            [*command, "generate", b"\xff", "--at", server.address],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=False,
        )  # fmt: skip
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert b"UTF-8" in refused.stderr
        assert b"Traceback" not in refused.stderr


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_an_answer_that_is_cut_is_no_success(command: str) -> None:
    script = lambda _: Answer([Emission(0.0, 1), Emission(60.0, 1)])  # noqa: E731
    arguments = ["generate", "In the beginning"] if command == "generate" else ["chat"]
    with InferenceServer(script) as server, Terminal(*arguments, "--at", server.address) as t:
        if command == "chat":
            t.wait_for("you> ")
            t.press(b"hello\n")
        deadline_s = time.monotonic() + 30
        while not server.servicer.emitted:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        t.press(CTRL_C)
        assert t.ends() == 130
        assert "Traceback" not in t.said


def test_generate_says_how_to_ask_about_its_answer() -> None:
    with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server:
        with Terminal("generate", "x", "--at", server.address) as t:
            assert t.ends() == 0
            assert f"tandem why r0 --at {server.address}" in t.said
        with Terminal("generate", "x", "--stats", "--at", server.address) as t:
            assert t.ends() == 0
            assert "r0: 0 prompt tokens" in t.said
        piped = subprocess.run(
            [sys.executable, "-m", "services.cli", "generate", "x", "--at", server.address],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert (piped.stdout, piped.stderr) == ("x\n", "")


def test_ctrl_c_while_the_command_is_still_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-c", "from services.entry import main; main()"],
        cwd=ROOT, env={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
