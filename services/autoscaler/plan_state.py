"""What the planner remembers between two looks. Frozen: each plan returns the next one."""

from dataclasses import dataclass, field, replace

from common.config.place import Role


@dataclass(frozen=True, slots=True)
class Drain:
    """The pool's last group is being emptied."""

    group: int
    since_s: float
    reason: str
    idle_since_s: float | None = None
    for_other: bool = False  # to give its GPUs to the other pool


@dataclass(frozen=True, slots=True)
class PoolState:
    """
    Attributes:
        demands: (time, groups needed), oldest first; only fresh observations.
        changed_s: when the number of groups was last changed, or a drain given up.
    """

    demands: tuple[tuple[float, float], ...] = ()
    changed_s: float = float("-inf")
    drain: Drain | None = None

    def remember(self, now_s: float, groups: float | None, keep_s: float, lapse_s: float) -> "PoolState":
        """With one more demand. None, nothing known: after `lapse_s` of it the past counts no more."""
        past = self.demands
        if past and now_s - past[-1][0] > lapse_s:
            past = ()
        if groups is not None:
            past = (*past, (now_s, groups))
        begin = max((i for i, (at_s, _) in enumerate(past) if at_s <= now_s - keep_s), default=0)
        return replace(self, demands=past[begin:])

    def at_least(self, now_s: float, window_s: float) -> float:
        """The least demand of the window; 0 when it is not all known."""
        return min(self._window(now_s, window_s), default=0.0)

    def at_most(self, now_s: float, window_s: float) -> float:
        """The greatest demand of the window; infinite when it is not all known."""
        return max(self._window(now_s, window_s), default=float("inf"))

    def _window(self, now_s: float, window_s: float) -> list[float]:
        if not self.demands or self.demands[0][0] > now_s - window_s:
            return []
        return [groups for at_s, groups in self.demands if at_s >= now_s - window_s]


@dataclass(frozen=True, slots=True)
class Shift:
    """GPUs on their way from one pool to the other; `left` groups of the giver are still to go."""

    giver: Role
    taker: Role
    left: int


@dataclass(frozen=True, slots=True)
class PlanState:
    pools: dict[Role, PoolState] = field(default_factory=dict)
    shift: Shift | None = None
    shifted_s: float = float("-inf")

    def of(self, role: Role) -> PoolState:
        return self.pools.get(role, PoolState())

    def with_pool(self, role: Role, pool: PoolState) -> "PlanState":
        return replace(self, pools={**self.pools, role: pool})
