"""What a process does when what it leans on is not there: a bounded wait that says what for."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.config.cluster import ClusterConfig
from common.config.load import dump_cluster, load_cluster, parse_cluster
from services.launcher.embedded import EmbeddedNats, EmbeddedServer, EmbeddedValkey
from services.launcher.ports import free_ports
from tests.cluster.conftest import BASE

ROOT = Path(__file__).resolve().parents[2]


def config_file(model: Path, scratch: Path, redis_port: int, nats_port: int, within_s: float) -> Path:
    config = parse_cluster(
        BASE
        | {
            "cluster": "absent",
            "model": {"path": str(model), "name": "tiny"},
            "redis": {"url": f"redis://127.0.0.1:{redis_port}/0", "start_timeout_s": within_s, "timeout_s": 0.5},
            "nats": {"url": f"nats://127.0.0.1:{nats_port}", "start_timeout_s": within_s, "timeout_s": 0.5},
        },
        "test",
    )
    file = scratch / "cluster.yaml"
    file.write_text(dump_cluster(config), encoding="utf-8")
    assert isinstance(load_cluster(file), ClusterConfig)
    return file


def start(module: str, file: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module, "--config", str(file), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("module", "arguments", "served", "named"),
    [
        ("services.scheduler.main", ("--replica", "0"), None, "Redis"),
        ("services.prefill.pod", (), EmbeddedValkey, "NATS"),
    ],
)
def test_an_absent_dependency_is_named_and_the_wait_ends(
    model: Path,
    tmp_path: Path,
    module: str,
    arguments: tuple[str, ...],
    served: type[EmbeddedServer] | None,
    named: str,
) -> None:
    ports = free_ports(2)
    server = served() if served is not None else None
    if server is not None:
        server.start(ports, tmp_path)
    process = start(module, config_file(model, tmp_path, ports, ports + 1, 1.0), *arguments)
    try:
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
        if server is not None:
            server.stop()
    assert process.returncode != 0
    assert f"waiting for {named}" in said
    assert f"no {named} at" in said


@pytest.mark.parametrize(("module", "named"), [("services.prefill.pod", "Redis"), ("services.decode.pod", "NATS")])
def test_a_worker_that_waits_ends_at_once_when_asked(model: Path, tmp_path: Path, module: str, named: str) -> None:
    ports, valkey = free_ports(2), EmbeddedValkey()
    if named == "NATS":
        valkey.start(ports, tmp_path)
    process = start(module, config_file(model, tmp_path, ports, ports + 1, 60.0))
    try:
        assert process.stderr is not None
        deadline_s = time.monotonic() + 90
        while f"waiting for {named}" not in (line := process.stderr.readline()):
            assert line, "the worker ended instead of waiting"
            assert time.monotonic() < deadline_s
        process.terminate()
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
        valkey.stop()
    assert process.returncode == 1
    assert f"asked to end while waiting for {named} at" in said
    assert "Traceback" not in said


def test_a_late_redis_is_waited_for(model: Path, tmp_path: Path) -> None:
    """Started before Redis and NATS; ready soon after they are."""
    ports = free_ports(2)
    process = start("services.scheduler.main", config_file(model, tmp_path, ports, ports + 1, 60.0), "--replica", "0")
    valkey, nats = EmbeddedValkey(), EmbeddedNats()
    try:
        assert process.stderr is not None
        deadline_s = time.monotonic() + 60
        while "waiting for Redis" not in (line := process.stderr.readline()):
            assert line, "the scheduler ended instead of waiting"
            assert time.monotonic() < deadline_s
        valkey.start(ports, tmp_path)
        nats.start(ports + 1, tmp_path)
        came_s = time.monotonic()
        while "serving" not in (line := process.stderr.readline()):
            assert line, "the scheduler ended instead of serving"
        assert time.monotonic() - came_s < 5
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stderr.close()  # type: ignore[union-attr]
        for server in (valkey, nats):
            server.stop()


def test_a_bad_configuration_ends_a_pod_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("model: {path: ., name: m}\ndecode: {blocs: 3}\n", encoding="utf-8")
    process = start("services.decode.pod", file)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert str(file) in said
    assert "decode.blocs: no such field" in said
