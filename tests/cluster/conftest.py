"""Clusters of real processes, one per configuration and session, over a tiny random model in fp32."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.config.load import load_cluster
from services.launcher.cluster import LocalCluster
from services.launcher.run_directory import RunDirectory
from tests.cluster.running import START_TIMEOUT_S, RunningCluster
from tests.oracle.checkpoint_files import random_tensors, write_checkpoint
from tests.oracle.configurations import configuration
from tests.oracle.transformers_model import Oracle

BASE: dict[str, Any] = {
    "model": {"path": "model", "name": "tiny"},
    "block_tokens": 16,
    "context_tokens": 1024,
    "prefill": {"blocks": 256, "chunk_tokens": 64},
    "decode": {"blocks": 256, "landing_blocks": 32, "draining_blocks_limit": 16},
    "redis": {"worker_lease_s": 3.0},
    "scheduler": {"lookup_budget_ms": 200.0},  # for a machine that does much else
}
CONFIGURATIONS: dict[str, list[str]] = {
    # Two groups of each role, so that one can die.
    "pairs": ["draft_tokens=1", "prefill.parallel.groups=2", "decode.parallel.groups=2"],
    "ep2": [
        "draft_tokens=2", "prefill.parallel.ep=2", "decode.parallel.ep=2",
        "prefill.worker.schedule=dispatch_overlap", "decode.worker.schedule=dual_microbatch",
    ],
    "tp2": [
        "draft_tokens=0", "prefill.parallel.ep=2", "prefill.parallel.tp=2",
        "decode.parallel.ep=2", "decode.parallel.tp=2",
    ],
    # Unequal tensor parallelism: latent is the same whatever the ranks of an instance share.
    "decode-tp2": ["draft_tokens=2", "decode.parallel.ep=2", "decode.parallel.tp=2"],
    "prefill-tp2": ["draft_tokens=1", "prefill.parallel.ep=2", "prefill.parallel.tp=2"],
    # Pods of several instances, and groups of several pods.
    "ep4": [
        "draft_tokens=1", "decode.parallel.ep=4", "decode.parallel.instances_per_pod=2",
        "decode.worker.schedule=dual_microbatch",
    ],
    "ep4-tp2": [
        "draft_tokens=2", "prefill.parallel.ep=2", "prefill.parallel.instances_per_pod=1",
        "decode.parallel.ep=4", "decode.parallel.tp=2", "decode.parallel.instances_per_pod=2",
        "decode.worker.schedule=dispatch_overlap",
    ],
}  # fmt: skip
LONG = {"tp2", "ep4-tp2"}  # in the matrix


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that configurations name as `model`."""
    directory = tmp_path_factory.mktemp("cluster") / "model"
    directory.mkdir()
    fields = configuration("base")
    write_checkpoint(directory, fields, random_tensors(fields))
    return directory


@pytest.fixture(scope="session")
def oracle(model: Path) -> Oracle:
    return Oracle(model)


@dataclasses.dataclass
class Clusters:
    """Starts a configuration when it is first asked for; one at a time, since two cores serve them all."""

    model: Path
    name: str = ""
    running: RunningCluster | None = None

    def get(self, name: str) -> RunningCluster:
        if self.name != name or self.running is None:
            self.stop()
            self.running, self.name = start_cluster(self.model, name, CONFIGURATIONS[name]), name
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            running, self.running = self.running, None
            running.stop()


def start_cluster(model: Path, name: str, settings: list[str]) -> RunningCluster:
    import yaml

    file = model.parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump(BASE | {"cluster": name}), encoding="utf-8")
    cluster = LocalCluster(load_cluster(file, settings), RunDirectory.create(model.parent / f"run-{name}"))
    running = RunningCluster(cluster)
    try:
        cluster.start()
        cluster.wait_ready(START_TIMEOUT_S)
    except BaseException:
        running.stop()
        raise
    return running


@pytest.fixture(scope="package")
def clusters(model: Path) -> Iterator[Clusters]:
    """Ends with the last test here, so that other tests have the machine for themselves."""
    every = Clusters(model)
    yield every
    every.stop()


@pytest.fixture
def pairs(clusters: Clusters) -> RunningCluster:
    return clusters.get("pairs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one configuration together, so that each cluster starts once."""
    order = {name: number for number, name in enumerate(CONFIGURATIONS)}

    def place(item: pytest.Item) -> int:
        parameters = getattr(item, "callspec", None)
        return order.get(parameters.params.get("configuration", "pairs"), 0) if parameters is not None else 0

    for item in items:
        if Path(item.fspath).parent.name == "cluster":
            item.add_marker(pytest.mark.timeout(900))
    here = [item for item in items if Path(item.fspath).parent.name == "cluster"]
    ordered = iter(sorted(here, key=place))
    items[:] = [next(ordered) if item in here else item for item in items]
