"""Which processes a cluster consists of on one machine, with every port decided. Plain data; cluster.py starts them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.config.cluster import ClusterConfig, WorkerConfig
from common.config.place import ROLES, PodPlace, Role, parallel_of, pods, ranks


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to start."""

    name: str
    command: tuple[str, ...]
    metrics: tuple[str, ...]  # host:port of what it exports
    drain_timeout_s: float


def resolve(config: ClusterConfig, free_ports: Callable[[int], int]) -> ClusterConfig:
    """Give every scheduler port that was left open a number."""
    scheduler = config.scheduler
    chosen = {
        field: getattr(scheduler, field) or free_ports(scheduler.replicas)
        for field in ("port", "http_port", "metrics_port")
    }
    return config.model_copy(update={"scheduler": scheduler.model_copy(update=chosen)})


def scheduler_plans(config: ClusterConfig, file: Path) -> list[ProcessPlan]:
    scheduler = config.scheduler
    return [
        ProcessPlan(
            f"scheduler-{i}",
            (sys.executable, "-m", "services.scheduler.main", "--config", str(file), "--tethered", "--replica", str(i)),
            (f"{scheduler.host}:{scheduler.metrics_port + i}",),
            scheduler.drain_timeout_s,
        )
        for i in range(scheduler.replicas)
    ]


def pod_plans(config: ClusterConfig, file: Path, free_ports: Callable[[int], int]) -> list[ProcessPlan]:
    """Every pod of both pools; the pods of one group meet at one rendezvous."""
    plans = []
    for role in ROLES:
        worker = worker_of(config, role)
        meetings = {group: f"{worker.host}:{free_ports(1)}" for group in range(parallel_of(config, role).groups)}
        for pod in pods(config, role):
            leads = sum(place.leads for place in ranks(parallel_of(config, role), pod))
            first_metrics_port = free_ports(leads)
            plans.append(
                ProcessPlan(
                    pod.name,
                    pod_command(role, file, pod, meetings[pod.group], first_metrics_port),
                    tuple(f"{worker.host}:{first_metrics_port + i}" for i in range(leads)),
                    worker.drain_timeout_s,
                )
            )
    return plans


def pod_command(role: Role, file: Path, pod: PodPlace, rendezvous: str, first_metrics_port: int) -> tuple[str, ...]:
    return (
        sys.executable, "-m", f"services.{role}.pod", "--config", str(file),
        "--group", str(pod.group), "--node", str(pod.node),
        "--rendezvous", rendezvous, "--first-metrics-port", str(first_metrics_port), "--tethered",
    )  # fmt: skip


def worker_of(config: ClusterConfig, role: Role) -> WorkerConfig:
    return config.prefill.worker if role == "prefill" else config.decode.worker


def instance_names(config: ClusterConfig) -> list[str]:
    """Every instance that a complete cluster has."""
    return [
        place.instance
        for role in ROLES
        for pod in pods(config, role)
        for place in ranks(parallel_of(config, role), pod)
        if place.leads
    ]
