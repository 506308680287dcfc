"""How a cluster ends: in order, with time to drain, and soon where a process has died."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from common.config.cluster import ClusterConfig
from services.launcher.child import Child, ChildDied
from services.launcher.cluster import LocalCluster
from services.launcher.embedded import EmbeddedNats, EmbeddedServer, EmbeddedValkey
from services.launcher.processes import ProcessPlan
from services.launcher.run_directory import RunDirectory

DRAINS = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("up", flush=True)
while not asked: time.sleep(0.02)
for _ in range(int(float(sys.argv[1]) / 0.02)):
    time.sleep(0.02)
    if len(asked) > 1:
        print("cut", flush=True)
        sys.exit(0)
print("drained", flush=True)
"""
DRAIN_TIMEOUT_S = 60.0


def cluster_of(directory: Path, scheduler_s: float, pool_s: float) -> LocalCluster:
    """A ready cluster of three processes that drain for so long."""
    config = ClusterConfig.model_validate({"model": {"path": "m", "name": "m"}})
    cluster = LocalCluster(config, RunDirectory.create(directory / "run"))
    for name in ("scheduler-0", "decode-0-node-0", "prefill-0-node-0"):
        drain_s = scheduler_s if name.startswith("scheduler") else pool_s
        command = (sys.executable, "-c", DRAINS, str(drain_s))
        cluster.children[name] = Child(name, command, cluster.run.logs / f"{name}.log", {})
        cluster._plans[name] = ProcessPlan(name, command, (), DRAIN_TIMEOUT_S)
    cluster._ready = True
    deadline_s = time.monotonic() + 20
    while not all("up" in said(cluster, name) for name in cluster.children):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return cluster


def said(cluster: LocalCluster, name: str) -> str:
    return (cluster.run.logs / f"{name}.log").read_text()


def test_a_whole_cluster_drains(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, scheduler_s=3.0, pool_s=0.1)
    assert cluster.stop() == []
    assert all("drained" in said(cluster, name) for name in cluster.children)


def test_a_cluster_that_lost_a_process_ends_soon_and_in_order(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, DRAIN_TIMEOUT_S, DRAIN_TIMEOUT_S)
    dead = cluster.children["decode-0-node-0"]
    dead.signal(signal.SIGKILL)
    assert dead.ended_by(time.monotonic() + 10)
    begun_s = time.monotonic()
    assert cluster.stop() == []
    assert time.monotonic() - begun_s < 10
    assert "cut" in said(cluster, "scheduler-0")
    assert "cut" in said(cluster, "prefill-0-node-0")


def kill(cluster: LocalCluster, server: EmbeddedServer) -> None:
    cluster._start_server(server)
    cluster.check()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while server.running():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("kind", [EmbeddedValkey, EmbeddedNats])
def test_a_lost_server_is_reported_like_any_process(tmp_path: Path, kind: type[EmbeddedServer]) -> None:
    cluster = cluster_of(tmp_path, DRAIN_TIMEOUT_S, DRAIN_TIMEOUT_S)
    server = kind()
    try:
        kill(cluster, server)
        with pytest.raises(ChildDied, match=f"{server.name} was killed by SIGKILL"):
            cluster.check()
        begun_s = time.monotonic()
    finally:
        assert cluster.stop() == []
    assert time.monotonic() - begun_s < 10


def test_it_goes_on_without_what_it_forgets(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, 0.0, 0.0)
    try:
        server = EmbeddedNats()
        kill(cluster, server)
        cluster.forget(server.name)
        cluster.check()
    finally:
        cluster.stop()
