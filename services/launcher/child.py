"""A process of the cluster: started with a log of its own, watched, and ended in two steps."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import TandemError

# As common/telemetry/logs.py writes them, as text or as JSON.
_ERROR_LINE = re.compile(r'\d\d:\d\d:\d\d\.\d{3} (error|critical) |\{"time_s": [\d.]+, "level": "(error|critical)"')


class ChildDied(TandemError):
    """A process ended that should have gone on; carries its last log lines."""

    reason = "CHILD_DIED"

    def __init__(self, name: str, code: int, last_lines: Sequence[str]) -> None:
        self.name, self.code, self.last_lines = name, code, tuple(last_lines)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        super().__init__("\n".join([f"{name} {how}; its last lines:", *(f"  {line}" for line in last_lines)]))


class Child:
    """One process in a process group of its own, so that a Ctrl-C at the terminal reaches the launcher alone."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the child that the launcher is gone
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raises ChildDied when the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise ChildDied(self.name, code, self.last_lines())

    def last_lines(self, count: int = 12) -> list[str]:
        """The end of its log; earlier, from the last error on, where a traceback would push that out of sight."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [i for i, line in enumerate(lines) if _ERROR_LINE.match(line)]
        first = min([max(0, len(lines) - count), *errors[-1:]])
        return lines[first : first + count]

    def signal(self, number: signal.Signals) -> None:
        if self.running():
            self._process.send_signal(number)

    def ended_by(self, deadline_s: float) -> bool:
        """Wait until `deadline_s` on the monotonic clock for its end; whether it came."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, deadline_s: float) -> bool:
        """Wait until `deadline_s` on the monotonic clock for a process that was told to end, then kill its group.

        Returns:
            Whether it ended by itself.
        """
        ended = self.ended_by(deadline_s)
        if not ended:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return ended
