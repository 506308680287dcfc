"""Requests get their turn: the queue of those that wait, and the gate that lets them go."""

import asyncio
from dataclasses import dataclass
from math import inf

from common.clock import Clock
from common.errors import ComeBack, DeadlineExceeded, NoInstance, Overloaded
from services.scheduler.admission import Backlog, admit, may_dispatch, predicted_wait_s
from services.scheduler.fair_queue import FairQueue
from services.scheduler.fleet import Fleet
from services.scheduler.settings import AdmissionPolicy
from services.scheduler.turn_pace import TurnPace

_RESIDENCE_WEIGHT = 0.1  # of the newest request in the moving average


@dataclass(eq=False, slots=True)
class Turn:
    """A place in the queue, then the right to be placed."""

    tokens: int
    choices: int
    granted: asyncio.Future[None]
    granted_s: float = 0.0


class Turns:
    """Everything that changes what may go calls `pump`."""

    def __init__(self, clock: Clock, fleet: Fleet, policy: AdmissionPolicy) -> None:
        self._clock = clock
        self._fleet = fleet
        self._policy = policy
        self._queue: FairQueue[Turn] = FairQueue(policy.tenant_weights)
        self._unplaced: dict[Turn, None] = {}
        self._live = 0
        self._pace = TurnPace(clock)
        self._residence_s: float | None = None  # before the first end
        self._pumping = False
        fleet.changed = self.pump

    @property
    def live(self) -> int:
        return self._live

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests that wait, once a choice."""
        return round(self._queue.waiting_cost)

    async def take(self, tenant: str, priority: int, tokens: int, choices: int, deadline_s: float | None) -> Turn:
        """Wait for the turn of a request; `leave` must follow, whatever happens after.

        Raises:
            Overloaded: shed on arrival, displaced by a tenant that waits less, or not reached in time.
            NoInstance: not reached in time, since nobody of a role was ready.
            DeadlineExceeded: its own time was shorter.
        """
        now_s = self._clock.now_s()
        budget_s = None if deadline_s is None else deadline_s - now_s
        prefill, decode = self._fleet.prefill_states(), self._fleet.decode_states()
        if not admit(tokens, budget_s, prefill, decode, self._backlog(tenant), self._policy):
            self._displace()
        turn = Turn(tokens, choices, asyncio.get_running_loop().create_future())
        self._live += 1
        self._queue.push(tenant, priority, tokens * choices, turn)
        self.pump()
        if self._queue:
            self._pace.waits()
        try:
            async with asyncio.timeout(min(self._policy.max_wait_s, inf if budget_s is None else budget_s)):
                await turn.granted
        except TimeoutError as error:
            self._abandon(tenant, turn)
            if budget_s is not None and budget_s <= self._policy.max_wait_s:
                raise DeadlineExceeded("the deadline passed before its turn came") from error
            raise self._not_reached() from error
        except BaseException:
            self._abandon(tenant, turn)
            raise
        return turn

    def placed(self, turn: Turn) -> None:
        """The turn's work is booked at an instance."""
        self._unplaced.pop(turn, None)
        self.pump()

    def leave(self, turn: Turn) -> None:
        """The request ended."""
        self._unplaced.pop(turn, None)
        self._live -= 1
        resided_s = self._clock.now_s() - turn.granted_s
        before_s = resided_s if self._residence_s is None else self._residence_s
        self._residence_s = before_s + _RESIDENCE_WEIGHT * (resided_s - before_s)
        self.pump()

    def pump(self) -> None:
        """Let go what may go."""
        if self._pumping:
            return
        if not self._queue:
            self._pace.nobody_waits()
            return
        self._pumping = True
        prefill, decode = self._fleet.prefill_states(), self._fleet.decode_states()
        while self._queue and may_dispatch(prefill, decode, self._backlog(""), self._policy):
            turn = self._queue.pop()
            if not turn.granted.done():  # else it is being cancelled just now
                self._unplaced[turn] = None
                turn.granted_s = self._clock.now_s()
                turn.granted.set_result(None)
                self._pace.granted(turn.tokens * turn.choices)
        if not self._queue:
            self._pace.nobody_waits()
        self._pumping = False

    def _not_reached(self) -> ComeBack:
        """Why a turn did not come within the longest wait."""
        waited = f"in {self._policy.max_wait_s:g} s"
        prefill, decode = self._fleet.prefill_states(), self._fleet.decode_states()
        if not prefill or not decode:
            role = "decode" if prefill else "prefill"
            return NoInstance(f"no {role} instance {waited}", self._policy.retry_after_s)
        wait_s = predicted_wait_s(prefill, decode, self._backlog(""))
        return Overloaded(f"its turn did not come {waited}", max(self._policy.retry_after_s, wait_s))

    def _backlog(self, tenant: str) -> Backlog:
        return Backlog(
            live=self._live,
            waiting=len(self._queue),
            waiting_tokens=self._queue.waiting_cost,
            unplaced_tokens=sum(turn.tokens * turn.choices for turn in self._unplaced),
            unplaced=sum(turn.choices for turn in self._unplaced),
            on_the_way=self._fleet.on_the_way,
            tokens_per_s=self._pace.tokens_per_s,
            residence_s=self._residence_s or 0.0,
            fullest_tenant_waiting=self._queue.count(self._queue.longest_tenant()) if self._queue else 0.0,
            tenant_waiting=self._queue.count(tenant),
        )

    def _displace(self) -> None:
        tenant = self._queue.longest_tenant()
        turn = self._queue.last_of(tenant)
        self._queue.remove(tenant, turn)
        if not turn.granted.done():
            what = "the queue is full and this tenant has most requests in it"
            turn.granted.set_exception(Overloaded(what, self._policy.retry_after_s))

    def _abandon(self, tenant: str, turn: Turn) -> None:
        self._queue.remove(tenant, turn)
        self._unplaced.pop(turn, None)
        self._live -= 1
        self.pump()
