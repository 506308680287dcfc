"""Where a process stands in its pool, and the names and numbers that follow from it. Pure arithmetic.

Ranks of an EP group count over its instances first: ``rank = dp_rank * tp + tp_rank``.
"""

from dataclasses import dataclass
from typing import Literal

from common.config.cluster import ClusterConfig, ParallelConfig
from common.errors import ConfigError

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")


def parallel_of(config: ClusterConfig, role: Role) -> ParallelConfig:
    return config.prefill.parallel if role == "prefill" else config.decode.parallel


@dataclass(frozen=True, slots=True)
class PodPlace:
    """One pod: node `node` of EP group `group`."""

    role: Role
    group: int
    node: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.group}-node-{self.node}"

    @property
    def group_name(self) -> str:
        return f"{self.role}-{self.group}"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank process of a pod."""

    pod: PodPlace
    dp_rank: int  # in the group
    tp_rank: int
    local_instance: int  # in the pod
    parallel: ParallelConfig

    @property
    def instance(self) -> str:
        return f"{self.pod.group_name}-{self.dp_rank}"

    @property
    def rank(self) -> int:
        """In the EP group."""
        return self.dp_rank * self.parallel.tp + self.tp_rank

    @property
    def local_rank(self) -> int:
        """In the pod; also the device's number."""
        return self.local_instance * self.parallel.tp + self.tp_rank

    @property
    def leads(self) -> bool:
        """Whether this rank has the instance's engine, queue and port."""
        return self.tp_rank == 0

    @property
    def tp_ranks(self) -> list[int]:
        """The instance's ranks in the EP group."""
        return [self.dp_rank * self.parallel.tp + tp_rank for tp_rank in range(self.parallel.tp)]


def pods(config: ClusterConfig, role: Role) -> list[PodPlace]:
    """Every pod of a pool, group by group."""
    parallel = parallel_of(config, role)
    return [PodPlace(role, group, node) for group in range(parallel.groups) for node in range(parallel.pods_per_group)]


def ranks(parallel: ParallelConfig, pod: PodPlace) -> list[RankPlace]:
    """The rank processes of one pod.

    Raises:
        ConfigError: the pool has no such pod.
    """
    if not 0 <= pod.group < parallel.groups:
        raise ConfigError(f"group = {pod.group}: the {pod.role} pool has {parallel.groups} groups")
    if not 0 <= pod.node < parallel.pods_per_group:
        raise ConfigError(f"node = {pod.node}: a {pod.role} group has {parallel.pods_per_group} pods")
    per_pod = parallel.dp // parallel.pods_per_group
    return [
        RankPlace(pod, pod.node * per_pod + local, tp_rank, local, parallel)
        for local in range(per_pod)
        for tp_rank in range(parallel.tp)
    ]


def rank(parallel: ParallelConfig, pod: PodPlace, local_rank: int) -> RankPlace:
    """Rank `local_rank` of one pod."""
    places = ranks(parallel, pod)
    if not 0 <= local_rank < len(places):
        raise ConfigError(f"local_rank = {local_rank}: {pod.name} has {len(places)} ranks")
    return places[local_rank]
