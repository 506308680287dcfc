"""A decode instance whose reader hangs: not live and saying so, its work elsewhere, and well again when it goes on."""

import asyncio
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Clusters, start_cluster
from tests.cluster.running import RunningCluster, ask, greedy
from tests.cluster.test_deaths import prompt
from tests.oracle.transformers_model import Oracle

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 12
WAVES = [range(first, first + 8) for first in range(900, 940, 8)]
SETTINGS = ["draft_tokens=1", "decode.parallel.groups=2", "decode.worker.stalled_after_s=2"]
# Python imports this at the start of every process: landing stands still in one group while a file is there.
HOLDS = """
import os, sys, time
if "services.decode.rank" in sys.orig_argv and sys.orig_argv[sys.orig_argv.index("--group") + 1] == "0":
    from common.transfer import landing
    land = landing.HostLanding.land
    def held(*given):
        while os.path.exists(os.environ["HOLD"]):
            time.sleep(0.01)
        return land(*given)
    landing.HostLanding.land = held
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Path]:
    hold = tmp_path / "hold"
    yield hold
    hold.unlink(missing_ok=True)


@pytest.fixture
def hanging(clusters: Clusters, model: Path, hold: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    clusters.stop()
    (hold.parent / "sitecustomize.py").write_text(HOLDS)
    monkeypatch.setenv("PYTHONPATH", f"{hold.parent}{os.pathsep}{ROOT}")
    monkeypatch.setenv("HOLD", str(hold))
    running = start_cluster(model, "hung-reader", SETTINGS)
    yield running
    hold.unlink(missing_ok=True)
    running.stop()


def health(cluster: RunningCluster) -> str:
    """What the first decode instance answers for itself."""
    endpoint = cluster.cluster.run.live_endpoint()
    assert endpoint is not None
    try:
        with urllib.request.urlopen(f"http://{endpoint.metrics[2]}/healthz", timeout=5) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read().decode()


def test_a_hung_reader_is_seen_and_left(hanging: RunningCluster, hold: Path, oracle: Oracle) -> None:
    assert health(hanging) == "live\n"
    hold.touch()

    async def ask_all(seeds: range) -> None:
        async with hanging.client() as client:
            answers = await asyncio.gather(*(ask(client, greedy(prompt(seed), TOKENS)) for seed in seeds))
        for seed, answer in zip(seeds, answers, strict=True):
            assert answer.token_ids == oracle.greedy(prompt(seed), TOKENS), f"prompt {seed}"

    for seeds in WAVES:  # a wave all of whose requests go to the other instance shows nothing
        asyncio.run(ask_all(seeds))
        said = health(hanging)
        if said != "live\n":
            break
    assert said.startswith("not live: the transfer reader made no progress for "), said
    assert "more than 2 s" in said
    assert [i.state for i in hanging.instances() if i.instance == "decode-0-0"] == ["suspect"]
    assert "not live" in hanging.log("decode-0-node-0")
    hold.unlink()
    hanging.wait_for("it is back", lambda: {i.state for i in hanging.instances()} == {"ready"})
    assert health(hanging) == "live\n"
    hanging.wait_idle()
