"""What this replica knows of the instances: descriptions, states, load reports and its own bookings.

    joining ──> ready <──> draining        readiness
                 │ ^          │
                 v │          v
               suspect <──────┘            no sign of life; back to ready when it shows one
    any ──> removed                        its lease lapsed and its health call fails

Plain data and no waiting: membership and the journeys write, placement reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from common.clock import Clock
from common.engine.events import EngineLoad
from common.request import Compatibility
from common.rpc.inference_data import InstanceInfo
from common.rpc.worker_data import InstanceDescription
from services.scheduler.bookings import Booking, InstanceBookings
from services.scheduler.placement import DecodeState, PrefillState, blocks_of
from services.scheduler.settings import SchedulerSettings

PREFILL, DECODE = "prefill", "decode"
_AVERAGE_WEIGHT = 0.2  # of the newest sample in moving averages
_BUSY_WEIGHT = 0.01  # likewise of "has work", which is a share of time: four reports a second make 25 s


class InstanceState(StrEnum):
    JOINING = "joining"  # known, not yet described and connected
    READY = "ready"  # takes work
    DRAINING = "draining"  # finishes what it has
    SUSPECT = "suspect"  # gave no sign of life when it should have


@dataclass(slots=True)
class Instance:
    """One worker instance. `description` is None until it joined."""

    instance: str
    role: str
    address: str
    state: InstanceState = InstanceState.JOINING
    description: InstanceDescription | None = None
    load: EngineLoad | None = None
    load_s: float = float("-inf")  # when the last report came
    bookings: InstanceBookings = field(default_factory=InstanceBookings)
    busy: float = 0.0  # moving average of "has work", 0 to 1
    exposed_transfer_s: float = 0.0  # moving average

    @property
    def incarnation(self) -> int:
        return 0 if self.description is None else self.description.incarnation


class Fleet:
    """All instances of both roles. `changed` is called whenever more work may be possible than before."""

    def __init__(self, clock: Clock, settings: SchedulerSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._instances: dict[str, Instance] = {}
        self._on_the_way: set[str] = set()
        self.changed: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def get(self, instance: str) -> Instance | None:
        return self._instances.get(instance)

    def add(self, instance: str, role: str, address: str) -> Instance:
        self._instances[instance] = Instance(instance, role, address)
        return self._instances[instance]

    def remove(self, instance: str) -> None:
        self._instances.pop(instance, None)

    def set_state(self, instance: str, state: InstanceState) -> bool:
        """Whether this changed anything."""
        known = self._instances.get(instance)
        if known is None or known.state is state:
            return False
        known.state = state
        self.changed()
        return True

    def report(self, instance: str, incarnation: int, load: EngineLoad) -> None:
        """Take a load report; one of another incarnation is about memory that is gone."""
        known = self._instances.get(instance)
        if known is None or known.incarnation != incarnation:
            return
        known.load, known.load_s = load, self._clock.now_s()
        known.bookings.forget_before(known.load_s)
        has_work = float(load.queued > 0 or load.running > 0)
        known.busy += _BUSY_WEIGHT * (has_work - known.busy)
        self.changed()

    @property
    def on_the_way(self) -> int:
        """Pieces of work in prefill that have no place at decode yet but will need one."""
        return len(self._on_the_way)

    def expect(self, work_id: str) -> None:
        self._on_the_way.add(work_id)

    def arrived(self, work_id: str) -> None:
        """It has a place at decode, or needs none any more."""
        self._on_the_way.discard(work_id)

    def book(self, instance: str, work_id: str, tokens: int) -> None:
        known = self._instances.get(instance)
        if known is not None:
            known.bookings.book(work_id, Booking(instance, tokens, self._clock.now_s()))

    def close(self, instance: str, work_id: str) -> None:
        known = self._instances.get(instance)
        if known is not None:
            known.bookings.close(work_id, self._clock.now_s())
            if self._fresh(known) is None:  # the next report will know; until it comes own open work is all
                known.bookings.forget_before(self._clock.now_s())
            self.changed()

    def observe_transfer(self, instance: str, exposed_s: float) -> None:
        known = self._instances.get(instance)
        if known is not None:
            known.exposed_transfer_s += _AVERAGE_WEIGHT * (exposed_s - known.exposed_transfer_s)

    def ready(self, role: str) -> list[Instance]:
        return [one for one in self._instances.values() if one.role == role and one.state is InstanceState.READY]

    @property
    def compatibility(self) -> Compatibility | None:
        """What the joined instances agree on; None when there is none."""
        for one in self._instances.values():
            if one.description is not None:
                return one.description.compatibility
        return None

    def utilisation(self) -> float:
        """Of the prefill pool, 0 to 1."""
        pool = self.ready(PREFILL)
        return sum(one.busy for one in pool) / len(pool) if pool else 0.0

    def prefill_states(self) -> list[PrefillState]:
        return [self._prefill_state(one, one.description) for one in self.ready(PREFILL) if one.description]

    def decode_states(self) -> list[DecodeState]:
        return [self._decode_state(one, one.description) for one in self.ready(DECODE) if one.description]

    def infos(self) -> tuple[InstanceInfo, ...]:
        now_s = self._clock.now_s()
        return tuple(_info(one, now_s, self._tokens_per_s(one)) for one in self._instances.values())

    def _tokens_per_s(self, one: Instance) -> float:
        """As a prefill instance measured it: by its last report, however old, else by its description."""
        said = [one.load.tokens_per_s if one.load else 0.0, one.description.tokens_per_s if one.description else 0.0]
        rate = next((rate for rate in said if rate), self._settings.prefill_tokens_per_s)
        return max(1.0, rate) if one.role == PREFILL else 0.0

    def _fresh(self, one: Instance) -> float | None:
        fresh = self._clock.now_s() - one.load_s <= self._settings.membership.report_fresh_s
        return one.load_s if fresh else None

    def _prefill_state(self, one: Instance, described: InstanceDescription) -> PrefillState:
        load = one.load
        tokens, works = one.bookings.effective(
            load.queued_tokens if load else 0, load.queued + load.running if load else 0, self._fresh(one)
        )
        return PrefillState(
            instance=one.instance,
            group=described.group,
            queued_tokens=tokens,
            tokens_per_s=self._tokens_per_s(one),
            total_blocks=described.total_blocks,
            placed_tokens=one.bookings.placed_tokens,
            works=works,
        )

    def _decode_state(self, one: Instance, described: InstanceDescription) -> DecodeState:
        load = one.load
        fresh_s = self._fresh(one)
        tokens, sequences = one.bookings.effective(
            load.queued_tokens + load.running_tokens if load else 0, load.queued + load.running if load else 0, fresh_s
        )
        block_tokens = self._settings.placement.block_tokens
        if load is not None and fresh_s is not None:
            booked = tokens - load.queued_tokens - load.running_tokens
            free = load.free_blocks - blocks_of(load.queued_tokens + max(0, int(booked)), block_tokens)
        else:
            free = described.total_blocks - blocks_of(int(tokens), block_tokens)
        return DecodeState(
            instance=one.instance,
            group=described.group,
            sequences=sequences,
            running_tokens=tokens,
            free_blocks=free,
            total_blocks=described.total_blocks,
            max_running=described.max_running,
            exposed_transfer_s=one.exposed_transfer_s,
            placed_tokens=one.bookings.placed_tokens,
        )


def _info(one: Instance, now_s: float, tokens_per_s: float) -> InstanceInfo:
    load, described = one.load, one.description
    return InstanceInfo(
        instance=one.instance,
        role=one.role,
        group=described.group if described else "",
        address=one.address,
        incarnation=one.incarnation,
        state=one.state.value,
        queued_tokens=load.queued_tokens if load else 0,
        running=load.running if load else 0,
        free_blocks=load.free_blocks if load else 0,
        total_blocks=described.total_blocks if described else 0,
        step_ms=load.step_s * 1000 if load else 0.0,
        queued=load.queued if load else 0,
        max_running=described.max_running if described else 0,
        tokens_per_s=tokens_per_s,
        busy=one.busy,
        report_age_ms=round((now_s - one.load_s) * 1000) if load else -1,
    )
