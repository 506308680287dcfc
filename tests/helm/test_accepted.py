"""What the chart accepts works: values drawn at random are refused by name, or give objects and a file that load."""

import random
from collections.abc import Iterator

import pytest

from tests.helm.chart import PRESETS, Chart, Refused
from tests.helm.objects import KUBERNETES, containers, faults_of, pods
from tests.helm.test_presets import config_of

DRAWS = 80
OF_A_POOL: dict[str, tuple[object, ...]] = {
    "enabled": ("false",), "groups": (0, 2, 7), "ep": (8, 16, 32), "dp": (1, 2, 4, 8, 16), "tp": (1, 2, 4, 8),
    "nodes": (1, 2, 4), "gpusPerNode": (4, 8), "shm": ("1Gi", "16Gi", "100000M", "2Ti"),
    "settings.blocks": (512, 600, 2560, 10**6), "settings.max_running": (1, 100_000),
    "settings.max_queued": (1, 10**9), "worker.threads": (1, 64), "worker.group_silence_s": (0.5, 3600),
    "worker.stalled_after_s": (0.1, 60), "lifecycle.loadSeconds": (60, 10**7), "lifecycle.preStopSeconds": (0, 300),
    "lifecycle.drainSeconds": (0, 10**6), "lifecycle.leaseSeconds": (1, 3600), "rollout.maxSurge": (0, 3),
    "rollout.maxUnavailable": (0, 3), "autoscale.minGroups": (1, 2), "autoscale.maxGroups": (1, 2, 50),
    "pdb.maxUnavailableGroups": (1, 9), "ports.health": (80, 7105), "ports.grpc": (1, 65528),
}  # fmt: skip
OF_THE_REST: dict[str, tuple[object, ...]] = {
    "autoscaler.enabled": ("true",), "groupController": ("StatefulSet", "LeaderWorkerSet"),
    "autoscaler.settings.gpus_limit": (0, 10**6), "autoscaler.settings.prefill_busy_limit": (0, 0.5, 2),
    "autoscaler.settings.interval_s": (0.1, 60), "autoscaler.settings.hold_s": (1, 1000),
    "autoscaler.settings.lease_renew_s": (1, 14), "scheduler.settings.lookup_budget_ms": (0.5, 1000),
    "scheduler.settings.max_wait_s": (0.5, 10**6), "scheduler.replicas": (1, 50), "runAsUser": (0, 1),
    "scheduler.autoscaling.enabled": ("false",), "scheduler.lifecycle.startSeconds": (10, 10**5),
    "scheduler.lifecycle.drainSeconds": (0, 86400), "redis.timeoutSeconds": (0.05, 2.0, 30),
    "redis.startTimeoutSeconds": (0.5, 540, 541), "redis.workerLeaseSeconds": (0.5, 60),
    "nats.loadIntervalSeconds": (0.01, 10), "contextTokens": (2, 65, 131_072, 163_840), "rdma.enabled": ("false",),
    "layout.blockTokens": (1, 64, 128), "layout.draftTokens": (0, 3), "layout.dtype": ("float32",),
    "securityProfile": ("restricted", "privileged"), "decode.settings.landing_blocks": (1, 48, 512),
    "decode.settings.draining_blocks_limit": (1, 48, 64), "monitoring.podMonitor.enabled": ("true",),
    "monitoring.rules.enabled": ("true",), "networkPolicy.enabled": ("false",), "cluster": ("one",),
}  # fmt: skip


def draws() -> Iterator[tuple[str | None, tuple[str, ...]]]:
    dice = random.Random(20261130)
    places = OF_THE_REST | {f"{pool}.{name}": v for pool in ("prefill", "decode") for name, v in OF_A_POOL.items()}
    for _ in range(DRAWS):
        chosen = dice.sample(sorted(places), dice.randint(1, 4))
        yield dice.choice([*PRESETS, None]), tuple(f"{place}={dice.choice(places[place])}" for place in chosen)


@pytest.mark.helm
def test_what_is_accepted_works(helm4: Chart) -> None:
    accepted = 0
    for preset, settings in draws():
        where = f"{preset} {' '.join(settings)}"
        try:
            objects = helm4.objects(preset, settings)
        except Refused as refused:
            words = str(refused)
        else:
            words = ""
        if words:
            assert "schema(s)" in words or "execution error at" in words, where  # the chart's own
            continue
        accepted += 1
        assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == [], where
        config_of(objects)
        for name, template in pods(objects):
            for container in containers(template):
                names = [entry["name"] for entry in container["env"]]
                assert len(names) == len(set(names)), f"{where}: {name}"
    assert DRAWS * 0.3 < accepted < DRAWS * 0.9
