"""A group of two pods without LeaderWorkerSet: it meets, falls together, and comes back in the same pods."""

from collections.abc import Iterator

import pytest

from tests.helm.chart import Chart
from tests.helm.running import Release, rendered

SHAPE = ["decode.ep=2", "decode.dp=2", "decode.tp=1", "decode.nodes=2", "decode.gpusPerNode=1"]
NODES = ("decode", "decode-1")


@pytest.fixture(scope="module")
def release(helm4: Chart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    release = rendered(helm4, SHAPE, tmp_path_factory.mktemp("group"))
    yield release
    release.stop()


def start_group(release: Release) -> None:
    release.start("decode")
    release.start("decode", node=1, address="127.0.0.2")


def ask(release: Release) -> None:
    for name in NODES:
        release.started[name].wait("startupProbe", 200, 120)
        release.started[name].wait("readinessProbe", 200, 60)
    done = release.run("test", "request")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_two_pods_meet_and_serve(release: Release) -> None:
    for role in ("redis", "nats", "prefill", "scheduler"):
        release.start(role)
    start_group(release)
    for role in ("prefill", "scheduler"):
        release.started[role].wait("readinessProbe", 200, 120)
    ask(release)


@pytest.mark.helm
def test_one_dead_pod_ends_the_group_which_comes_back_with_a_clean_shared_memory(release: Release) -> None:
    left = release.directory / "decode-1" / "shm" / "ucx_shm_posix_dead"
    left.write_bytes(b"x" * 4096)
    release.started["decode-1"].process.kill()
    release.started["decode-1"].process.wait()
    assert release.started["decode"].process.wait(60) != 0  # and Kubernetes starts both again, in their old volumes
    start_group(release)
    ask(release)
    assert not left.exists()
