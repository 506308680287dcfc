"""The bundled servers take their password from the environment alone and refuse whoever does not know it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.bus.connection import connect_bus
from common.errors import DependencyUnavailable
from common.state.connect import connect_redis
from services.launcher.ports import free_ports


@contextmanager
def served(server: str, port: int, directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", f"services.launcher.serve_{server}", "--port", str(port)]
    environment = {**os.environ, f"{server.upper()}_PASSWORD": "geheim7"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--directory", str(directory)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) in (0, 1)


async def test_redis_wants_its_password(tmp_path: Path) -> None:
    port = free_ports(1)
    with served("redis", port, tmp_path):
        client = await connect_redis(f"redis://:geheim7@127.0.0.1:{port}/0", 1.0, 20.0)
        await client.aclose()
        with pytest.raises(DependencyUnavailable):
            await connect_redis(f"redis://127.0.0.1:{port}/0", 1.0, 0.0)
    assert (tmp_path / "valkey.conf").stat().st_mode & 0o777 == 0o600


async def test_nats_wants_its_password(tmp_path: Path) -> None:
    port = free_ports(1)
    with served("nats", port, tmp_path):
        bus = await connect_bus(f"nats://tandem:geheim7@127.0.0.1:{port}", "test", 1.0, 20.0)
        await bus.close()
        with pytest.raises(DependencyUnavailable):
            await connect_bus(f"nats://tandem:other@127.0.0.1:{port}", "test", 1.0, 0.0)


@pytest.mark.parametrize("password", ["", "with space"])
def test_no_password_no_server(tmp_path: Path, password: str) -> None:
    command = [sys.executable, "-m", "services.launcher.serve_redis", "--port", "1", "--directory", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "REDIS_PASSWORD": password}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "REDIS_PASSWORD" in done.stderr
