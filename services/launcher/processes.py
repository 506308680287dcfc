"""Which processes a cluster consists of on one machine, with every port decided. Plain data; cluster.py starts them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.config.cluster import ClusterConfig, WorkerConfig
from common.config.place import ROLES, PodPlace, Role, parallel_of, pods, ranks
from common.errors import ConfigError
from common.telemetry.logs import LogFormat
from services.launcher.ports import PortRange


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to start."""

    name: str
    command: tuple[str, ...]
    metrics: tuple[str, ...]  # host:port of what it exports
    drain_timeout_s: float


def require_pools(config: ClusterConfig) -> None:
    """A release of the chart may leave a pool to another one; a cluster of one machine answers nothing without.

    Raises:
        ConfigError: names the field.
    """
    for role in ROLES:
        if not parallel_of(config, role).groups:
            raise ConfigError(f"{role}.parallel.groups = 0: at least 1, for requests need both pools")


def resolve(config: ClusterConfig, free_ports: Callable[[int], int]) -> ClusterConfig:
    """Give every scheduler port that was left open a number."""
    scheduler = config.scheduler
    chosen = {
        field: getattr(scheduler, field) or free_ports(scheduler.replicas)
        for field in ("port", "http_port", "metrics_port")
    }
    return config.model_copy(update={"scheduler": scheduler.model_copy(update=chosen)})


def port_ranges(config: ClusterConfig) -> list[PortRange]:
    """Every port that the file fixes, with all replicas, pods and instances on this machine."""
    scheduler = config.scheduler
    ranges = [
        PortRange(f"scheduler.{field}", scheduler.host, getattr(scheduler, field), scheduler.replicas)
        for field in ("port", "http_port", "metrics_port")
    ]
    for role in ROLES:
        worker, instances = worker_of(config, role), parallel_of(config, role).groups * parallel_of(config, role).dp
        for field in ("first_port", "first_metrics_port"):
            ranges.append(PortRange(f"{role}.worker.{field}", worker.host, getattr(worker, field), instances))
    return [one for one in ranges if one.first and one.count]


def scheduler_plans(config: ClusterConfig, file: Path, log_format: LogFormat) -> list[ProcessPlan]:
    scheduler = config.scheduler
    return [
        ProcessPlan(
            f"scheduler-{i}",
            scheduler_command(file, log_format, i),
            (f"{scheduler.host}:{scheduler.metrics_port + i}",),
            scheduler.drain_timeout_s,
        )
        for i in range(scheduler.replicas)
    ]


def scheduler_command(file: Path, log_format: LogFormat, replica: int) -> tuple[str, ...]:
    return (
        sys.executable, "-m", "services.scheduler.main", "--config", str(file),
        "--log-format", log_format, "--tethered", "--replica", str(replica),
    )  # fmt: skip


def pod_plans(
    config: ClusterConfig, file: Path, free_ports: Callable[[int], int], log_format: LogFormat
) -> list[ProcessPlan]:
    """Every pod of both pools; the pods of one group meet at one rendezvous.

    All pods of a pool share this machine, so where the file fixes their ports each goes on where the one before ends.
    """
    plans = []
    for role in ROLES:
        worker = worker_of(config, role)
        meetings = {group: f"{worker.host}:{free_ports(1)}" for group in range(parallel_of(config, role).groups)}
        before = 0  # instances of the pods so far
        for pod in pods(config, role):
            leads = sum(place.leads for place in ranks(parallel_of(config, role), pod))
            first_port = worker.first_port and worker.first_port + before
            first_metrics_port = worker.first_metrics_port + before if worker.first_metrics_port else free_ports(leads)
            command = pod_command(role, file, log_format, pod, meetings[pod.group], first_port, first_metrics_port)
            plans.append(
                ProcessPlan(
                    pod.name,
                    command,
                    tuple(f"{worker.host}:{first_metrics_port + i}" for i in range(leads)),
                    worker.drain_timeout_s,
                )
            )
            before += leads
    return plans


def pod_command(
    role: Role,
    file: Path,
    log_format: LogFormat,
    pod: PodPlace,
    rendezvous: str,
    first_port: int,
    first_metrics_port: int,
) -> tuple[str, ...]:
    return (
        sys.executable, "-m", f"services.{role}.pod", "--config", str(file), "--log-format", log_format,
        "--group", str(pod.group), "--node", str(pod.node), "--rendezvous", rendezvous,
        "--first-port", str(first_port), "--first-metrics-port", str(first_metrics_port), "--tethered",
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
