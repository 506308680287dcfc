"""The command lines of a worker's two processes: the pod, and each of its ranks."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config.place import PodPlace, RankPlace, Role
from common.telemetry.logs import LogFormat
from common.worker.pod import RankCommand


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """Beside the cluster's file, what one pod or rank is told.

    Attributes:
        rendezvous: host:port where the ranks of the EP group meet; the group's rank 0 listens there.
        first_port: overrides the file's, for several pods on one machine; likewise `first_metrics_port`.
        tethered: end when standard input ends.
        clear_shared_memory: of a pod: a directory of its own to be freed of what dead processes left.
        health_port: of a pod: where it answers probes for all of its instances.
    """

    config: Path
    pod: PodPlace
    rendezvous: str
    first_port: int | None
    first_metrics_port: int | None
    log_format: LogFormat
    tethered: bool
    local_rank: int | None = None
    clear_shared_memory: Path | None = None
    health_port: int | None = None


def parse_arguments(role: Role, argv: Sequence[str]) -> WorkerArguments:
    parser = argparse.ArgumentParser(prog=f"services.{role}", description=f"One pod or rank of the {role} pool.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--rendezvous", default="127.0.0.1:29500")
    parser.add_argument("--first-port", type=int)
    parser.add_argument("--first-metrics-port", type=int)
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--tethered", action="store_true")
    parser.add_argument("--local-rank", type=int)
    parser.add_argument("--clear-shared-memory", type=Path)
    parser.add_argument("--health-port", type=int)
    given = parser.parse_args(argv)
    return WorkerArguments(
        config=given.config,
        pod=PodPlace(role, given.group, given.node),
        rendezvous=given.rendezvous,
        first_port=given.first_port,
        first_metrics_port=given.first_metrics_port,
        log_format=given.log_format,
        tethered=given.tethered,
        local_rank=given.local_rank,
        clear_shared_memory=given.clear_shared_memory,
        health_port=given.health_port,
    )


def rank_command(arguments: WorkerArguments, place: RankPlace, module: str, threads: int) -> RankCommand:
    """How the pod starts one of its ranks."""
    command = [
        sys.executable, "-m", module, "--config", str(arguments.config),
        "--group", str(arguments.pod.group), "--node", str(arguments.pod.node), "--local-rank", str(place.local_rank),
        "--rendezvous", arguments.rendezvous, "--log-format", arguments.log_format, "--tethered",
    ]  # fmt: skip
    for name, value in (
        ("--first-port", arguments.first_port),
        ("--first-metrics-port", arguments.first_metrics_port),
    ):
        if value is not None:
            command += [name, str(value)]
    return RankCommand(f"{place.instance}-tp-{place.tp_rank}", tuple(command), {"OMP_NUM_THREADS": str(threads)})
