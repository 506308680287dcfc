"""Pods that hold latent otherwise than the cluster: refused on both ways in, naming the field, and given no work."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.config.load import dump_cluster, parse_cluster
from common.config.place import Role
from services.launcher.child import Child
from services.launcher.ports import free_ports
from services.launcher.processes import pod_plans
from tests.cluster.conftest import BASE
from tests.cluster.running import START_TIMEOUT_S, RunningCluster, ask, greedy
from tests.cluster.test_deaths import prompt
from tests.oracle.checkpoint_files import random_tensors, write_checkpoint
from tests.oracle.configurations import configuration
from tests.oracle.transformers_model import Oracle

ODD: dict[str, tuple[Role, int, dict[str, Any], str]] = {
    "decode-2": ("decode", 2, {"block_tokens": 32}, "block_tokens differs"),
    "decode-3": ("decode", 3, {"model": {"dtype": "bfloat16"}}, "kv_dtype differs"),
    "prefill-2": ("prefill", 2, {"model": {"path": "wider"}}, "model_fingerprint differs"),
}


@pytest.fixture
def odd_pods(pairs: RunningCluster, model: Path) -> Iterator[dict[str, Child]]:
    """One pod for each way of being different, in the cluster of the others by its Redis and NATS."""
    fields = configuration("base", kv_lora_rank=96)  # another layout of a block
    write_checkpoint(model.parent / "wider", fields, random_tensors(fields))
    children: dict[str, Child] = {}
    for name, (role, group, changes, _) in ODD.items():
        document = BASE | {
            "cluster": pairs.cluster.config.cluster,
            "redis": BASE["redis"] | {"url": pairs.cluster.config.redis.url},
            "nats": {"url": pairs.cluster.config.nats.url},
            "draft_tokens": pairs.cluster.config.draft_tokens,
            **{key: value for key, value in changes.items() if key != "model"},
            "model": {**BASE["model"], "path": "model", **changes.get("model", {})},
        }
        document[role] = BASE[role] | {"parallel": {"groups": group + 1}}
        document["model"]["path"] = str(model.parent / document["model"]["path"])
        file = model.parent / f"{name}.yaml"
        config = parse_cluster(document, name)
        file.write_text(dump_cluster(config), encoding="utf-8")
        (plan,) = (plan for plan in pod_plans(config, file, free_ports, "text") if plan.name == f"{name}-node-0")
        children[name] = Child(name, plan.command, pairs.cluster.run.logs / f"{name}.log", {"OMP_NUM_THREADS": "1"})
    yield children
    for child in children.values():
        child.signal(signal.SIGTERM)
    for child in children.values():
        child.end(time.monotonic() + 30)
    pairs.wait_for("the odd ones have left", lambda: len(pairs.instances()) == 4)


def test_the_differing_field_is_named_and_nothing_is_mixed(
    pairs: RunningCluster, oracle: Oracle, odd_pods: dict[str, Child]
) -> None:
    def refused(log: str, instance: str, field: str) -> bool:
        return any(f"instance={instance}" in line and field in line for line in log.splitlines())

    def lines(name: str) -> str:
        return odd_pods[name].log.read_text(encoding="utf-8", errors="replace")

    for name, (_, _, _, field) in ODD.items():
        pairs.wait_for(
            f"the scheduler refuses {name}",
            lambda name=name, field=field: refused(pairs.log("scheduler-0"), f"{name}-0", field),
            START_TIMEOUT_S,
        )
    for name in ("decode-2", "decode-3"):
        pairs.wait_for(
            f"prefill refuses {name}",
            lambda name=name: all(refused(lines(name), f"prefill-{i}-0", ODD[name][3]) for i in range(2)),
        )
    pairs.wait_for(
        "the odd prefill refuses the cluster's decode",
        lambda: all(refused(pairs.log(f"decode-{i}-node-0"), "prefill-2-0", ODD["prefill-2"][3]) for i in range(2)),
    )
    states = {instance.instance: instance.state for instance in pairs.instances()}
    assert [states[f"{name}-0"] for name in ODD] == ["joining"] * 3

    async def ask_all() -> None:
        async with pairs.client() as client:
            seeds = range(700, 706)
            for seed, answer in zip(
                seeds, await asyncio.gather(*(ask(client, greedy(prompt(seed), 8)) for seed in seeds)), strict=True
            ):
                assert answer.token_ids == oracle.greedy(prompt(seed), 8), f"prompt {seed}"

    asyncio.run(ask_all())
    pairs.wait_for("nothing is left", lambda: all(i.running == 0 for i in pairs.instances()))
