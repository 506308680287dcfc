"""What the planner is told: one consistent look at both pools, as plain data."""

from dataclasses import dataclass

from common.config.place import Role


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """One EP group, summed over its instances as the schedulers see them."""

    index: int
    ready: int  # instances that take work
    resting: bool  # no scheduler gives it work
    fresh: bool  # every report is recent
    running: int = 0
    queued: int = 0
    queued_tokens: int = 0
    seats: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    step_ms: float = 0.0  # of the slowest instance
    tokens_per_s: float = 0.0  # prefill
    busy: float = 0.0  # mean share of time with work, 0 to 1

    @property
    def works(self) -> bool:
        """Takes work, and says truly how much it has."""
        return self.ready > 0 and self.fresh

    @property
    def idle(self) -> bool:
        """Has nothing and will get nothing."""
        return self.resting and self.fresh and not (self.running or self.queued or self.queued_tokens)


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """
    Attributes:
        replicas: groups that Kubernetes is asked for.
        ready_replicas: groups that Kubernetes calls ready.
        disruption_floor: groups that disruption budgets want at least.
        disruptions_allowed: whether budgets let any pod of the pool go now.
    """

    groups: tuple[GroupLoad, ...]
    replicas: int
    ready_replicas: int
    gpus_per_group: int
    disruption_floor: int = 0
    disruptions_allowed: bool = True

    @property
    def working(self) -> tuple[GroupLoad, ...]:
        return tuple(group for group in self.groups if group.works)

    @property
    def fresh(self) -> bool:
        return all(group.fresh for group in self.groups)

    def group(self, index: int) -> GroupLoad | None:
        return next((group for group in self.groups if group.index == index), None)


@dataclass(frozen=True, slots=True)
class Observation:
    """
    Attributes:
        pools: those that exist.
        waiting_requests, waiting_tokens: of all schedulers, not placed yet.
        complete: every scheduler answered; else queues may be longer and groups busier than they look.
    """

    now_s: float
    pools: dict[Role, PoolObservation]
    waiting_requests: int = 0
    waiting_tokens: int = 0
    complete: bool = True
