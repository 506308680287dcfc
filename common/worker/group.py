"""How the ranks of one EP group meet: transport, exchange, lock-step, signs of life, and an end they agree on."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.clock import Clock
from common.config.place import RankPlace
from common.engine.step_gate import AloneGate, StepGate
from common.errors import ConfigError, DependencyUnavailable
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.gloo import GlooTransport
from common.parallel.groups import Topology, exchange, tensor_group
from common.parallel.heartbeat import ParkedPeers, StoreHeartbeats
from common.parallel.in_process import InProcessTransport
from common.parallel.lock_step import SchedulePolicy
from common.parallel.rendezvous import Store, connect_store, host_store
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from common.parallel.wake_flag import StoreWakeFlag

_GROUP = "ep"
_NEVER = sys.maxsize
_ARRIVAL_POLL_S = 0.05
_FETCHED_WITHIN_S = 2.0

SCHEDULES = {
    "none": Schedule.NONE,
    "dispatch_overlap": Schedule.DISPATCH_OVERLAP,
    "dual_microbatch": Schedule.DUAL_MICROBATCH,
}
POLICIES = {
    "none": SchedulePolicy(_NEVER, overlap=False),
    "dispatch_overlap": SchedulePolicy(_NEVER),
    "dual_microbatch": SchedulePolicy(2),
}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's ties to its group.

    `ending` is None for a group of one instance, `arrival` and `transport` are for one of one rank.
    """

    topology: Topology
    all_to_all: AllToAll
    tensor_group: TensorGroup
    gate: StepGate
    ending: "GroupEnding | None" = None
    arrival: "GroupArrival | None" = None
    transport: GlooTransport | None = None

    def close(self) -> None:
        """The last step is done here, but others may not yet have fetched what this rank sent in it."""
        if self.transport is not None:
            self.transport.close(_FETCHED_WITHIN_S)


def join_group(
    place: RankPlace,
    *,
    experts: int,
    schedule: str,
    rendezvous: str,
    host: str,
    clock: Clock,
    meet_within_s: float,
    silence_s: float,
) -> RankGroup:
    """Meet the other ranks, if there are any.

    Args:
        meet_within_s: pods of a group start minutes apart; so long the first waits for the last.
        silence_s: a peer that is silent for longer, in a step or parked, is lost, and the group with it.

    Raises:
        DependencyUnavailable: not all came.
    """
    topology = Topology(place.rank, place.parallel.ep, place.parallel.tp)
    placement = ExpertPlacement.contiguous(experts, topology.world)
    if topology.world == 1:
        (alone,) = InProcessTransport.group(1)
        gate = AloneGate(SCHEDULES[schedule])
        return RankGroup(topology, exchange(alone, placement), tensor_group(topology, alone), gate)
    store = _meet(topology, rendezvous, meet_within_s)

    def connect() -> Store:
        return connect_store(*_address(rendezvous), timeout_s=silence_s)

    arrival = GroupArrival(store, topology.rank, topology.world, clock)
    arrival.wait("met", meet_within_s)
    transport = GlooTransport(store, topology.rank, topology.world, name=_GROUP, host=host, timeout_s=silence_s)
    flag = StoreWakeFlag(store, _GROUP, connect)
    peers = ParkedPeers(StoreHeartbeats(store, _GROUP, topology.instance, topology.instances), clock, silence_s)
    lock_step = LockStepGate(POLICIES[schedule], flag, peers, alone=topology.instances == 1)
    return RankGroup(
        topology,
        exchange(transport, placement),
        tensor_group(topology, transport),
        lock_step,
        GroupEnding(store, topology.instances, lock_step.dismiss) if topology.instances > 1 else None,
        arrival,
        transport,
    )


def _meet(topology: Topology, rendezvous: str, timeout_s: float) -> Store:
    host, port = _address(rendezvous)
    return (host_store if topology.rank == 0 else connect_store)(host, port, timeout_s=timeout_s)


def _address(rendezvous: str) -> tuple[str, int]:
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"rendezvous = {rendezvous}: must be host:port")
    return host, int(port)


class GroupArrival:
    """Points of the start that a rank passes only when all have reached them.

    Nodes pull images and read weights at different speeds, minutes apart: no bound on silence holds before that.
    """

    def __init__(self, store: Store, rank: int, ranks: int, clock: Clock) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._clock = clock

    def wait(self, point: str, within_s: float) -> None:
        """
        Raises:
            DependencyUnavailable: not all came, or the store is gone; says who is missing.
        """
        keys = [f"{_GROUP}/{point}/{rank}" for rank in range(self._ranks)]
        deadline_s = self._clock.now_s() + within_s
        try:
            self._store.set(keys[self._rank], "1")
            while not self._store.check(keys):
                if self._clock.now_s() >= deadline_s:
                    missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                    raise DependencyUnavailable(f"ranks {missing} of the group have not {point} within {within_s:g} s")
                time.sleep(_ARRIVAL_POLL_S)
        except RuntimeError as error:
            raise DependencyUnavailable(f"the group's store is gone: {error}") from error


class GroupEnding:
    """The agreed end of a group: experts of an instance are needed until the last one has drained.

    One instance that drains makes all of them drain; each stays in lock-step until all have finished.

    Args:
        dismiss: nobody is to wait for the group's next step any more.
    """

    def __init__(self, store: Store, instances: int, dismiss: Callable[[], None]) -> None:
        self._store = store
        self._instances = instances
        self._dismiss = dismiss

    def begin(self) -> None:
        self._add("draining", 1)

    def begun(self) -> bool:
        """Whether some instance of the group drains."""
        return self._add("draining", 0) > 0

    def finish(self) -> None:
        """This instance has nothing left to do."""
        self._add("drained", 1)

    def finished(self) -> bool:
        """Whether all have finished."""
        return self._add("drained", 0) >= self._instances

    def leave(self) -> None:
        """This instance has left lock-step; the store's host must outlive the others' leaving."""
        self._add("left", 1)

    def all_left(self) -> bool:
        """Whether all have; then those that still wait for a step at the store's host are let go, before it ends."""
        over = self._add("left", 0) >= self._instances
        if over:
            self._dismiss()
        return over

    def _add(self, what: str, amount: int) -> int:
        try:
            return int(self._store.add(f"{_GROUP}/{what}", amount))
        except RuntimeError as error:
            raise DependencyUnavailable(f"the group's store is gone: {error}") from error
