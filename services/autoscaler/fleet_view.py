"""Several schedulers' answers about the same instances as one view. Pure.

Of each instance the freshest report counts. It rests when every scheduler that knows it gives it nothing, and takes
work when one does. What waits is each scheduler's own, so that is added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.config.place import Role
from common.rpc.inference_data import ClusterInfo, InstanceInfo
from services.autoscaler.observation import GroupLoad

_READY, _DRAINING = "ready", "draining"


@dataclass(frozen=True, slots=True)
class FleetView:
    """
    Attributes:
        instances: by name, the freshest report of each.
        complete: every scheduler answered.
    """

    instances: dict[str, InstanceInfo]
    ready: frozenset[str]
    resting: frozenset[str]
    waiting_requests: int
    waiting_tokens: int
    answers: int
    complete: bool

    def of_group(self, role: Role, group: int) -> list[InstanceInfo]:
        return [one for one in self.instances.values() if one.role == role and group_index(one) == group]

    def groups(self, role: Role, stale_after_s: float) -> tuple[GroupLoad, ...]:
        members: dict[int, list[InstanceInfo]] = {}
        for one in self.instances.values():
            index = group_index(one)
            if one.role == role and index is not None:
                members.setdefault(index, []).append(one)
        return tuple(self._load(index, members[index], stale_after_s) for index in sorted(members))

    def _load(self, index: int, members: Sequence[InstanceInfo], stale_after_s: float) -> GroupLoad:
        return GroupLoad(
            index=index,
            ready=sum(one.instance in self.ready for one in members),
            resting=all(one.instance in self.resting for one in members),
            fresh=all(0 <= one.report_age_ms <= stale_after_s * 1000 for one in members),
            running=sum(one.running for one in members),
            queued=sum(one.queued for one in members),
            queued_tokens=sum(one.queued_tokens for one in members),
            seats=sum(one.max_running for one in members),
            free_blocks=sum(one.free_blocks for one in members),
            total_blocks=sum(one.total_blocks for one in members),
            step_ms=max(one.step_ms for one in members),
            tokens_per_s=sum(one.tokens_per_s for one in members),
            busy=sum(one.busy for one in members) / len(members),
        )


def merge(answers: Sequence[ClusterInfo], *, complete: bool) -> FleetView:
    told: dict[str, list[InstanceInfo]] = {}
    for answer in answers:
        for one in answer.instances:
            told.setdefault(one.instance, []).append(one)
    return FleetView(
        instances={name: min(infos, key=_age_ms) for name, infos in told.items()},
        ready=_named(told, lambda infos: any(one.state == _READY for one in infos)),
        resting=_named(told, lambda infos: all(one.state == _DRAINING for one in infos)),
        waiting_requests=sum(answer.waiting_requests for answer in answers),
        waiting_tokens=sum(answer.waiting_tokens for answer in answers),
        answers=len(answers),
        complete=complete and bool(answers),
    )


def group_index(one: InstanceInfo) -> int | None:
    """The number in the group's name ``<role>-<number>``; None for an instance that did not describe itself yet."""
    role, _, number = one.group.rpartition("-")
    return int(number) if role == one.role and number.isdecimal() else None


def _age_ms(one: InstanceInfo) -> float:
    return one.report_age_ms if one.report_age_ms >= 0 else float("inf")


def _named(told: dict[str, list[InstanceInfo]], holds: Callable[[list[InstanceInfo]], bool]) -> frozenset[str]:
    return frozenset(name for name, infos in told.items() if holds(infos))
