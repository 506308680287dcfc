import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import DependencyUnavailable
from services.launcher.embedded import HOST, EmbeddedNats, EmbeddedValkey
from services.launcher.ports import free_ports


@pytest.mark.parametrize("kind", [EmbeddedValkey, EmbeddedNats])
def test_server_answers_after_start_and_is_gone_after_stop(kind, tmp_path):
    server = kind()
    server.start(free_ports(1), tmp_path)
    pid = server.pid
    socket.create_connection((HOST, server.port), timeout=1.0).close()
    server.stop()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port), timeout=1.0)


def test_stopped_process_is_ended_too(tmp_path):
    server = EmbeddedNats()
    server.start(free_ports(1), tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert server.pid is None


@pytest.mark.parametrize("kind", [EmbeddedValkey, EmbeddedNats])
def test_port_in_use_is_refused(kind, tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DependencyUnavailable, match=f"port {port} is in use"):
            kind().start(port, tmp_path)


def test_server_that_ends_at_once_is_told_with_its_own_words(tmp_path):
    with pytest.raises(DependencyUnavailable, match=r"ended with code 1: .*nonsense"):
        EmbeddedValkey().start(free_ports(1), tmp_path, ["--nonsense", "1"])


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from services.launcher.embedded import EmbeddedValkey\nfrom services.launcher.ports import free_ports\n"
        "server = EmbeddedValkey()\nserver.start(free_ports(1), Path(sys.argv[1]))\n"
        "print(server.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    server = Path(f"/proc/{int(done.stdout)}")
    deadline_s = time.monotonic() + 10
    while server.exists() and "(valkey-server) Z" not in (server / "stat").read_text():
        assert time.monotonic() < deadline_s, "the server lives on"
        time.sleep(0.01)
