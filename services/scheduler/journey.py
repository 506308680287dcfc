"""One request from its turn to its last delta."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.cancellation import all_ended
from common.clock import Clock
from common.errors import Cancelled, DeadlineExceeded, InternalError, TandemError
from common.rpc.inference_data import Delta, Explanation, Ledger, Usage
from common.telemetry.logs import get_log
from common.telemetry.trace import Trace, tracing
from services.scheduler.choice import Choice
from services.scheduler.choice_output import ChoiceOutput
from services.scheduler.explain import ExplainStore
from services.scheduler.front_door import ValidRequest
from services.scheduler.ledger import LedgerClock
from services.scheduler.outbox import Outbox
from services.scheduler.prefix_lookup import PrefixLookup
from services.scheduler.reasoning import ReasoningCount
from services.scheduler.surroundings import Surroundings
from services.scheduler.tokenizer import THINK_END, THINK_START, Tokenizer
from services.scheduler.turns import Turns
from services.scheduler.work_ids import WorkIds

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Itinerary:
    """What all journeys of this replica use."""

    around: Surroundings
    lookup: PrefixLookup
    turns: Turns
    work_ids: WorkIds
    clock: Clock
    tokenizer: Tokenizer | None
    explained: ExplainStore


class Journey:
    """Runs all choices of a request and joins their deltas; the last carries usage and ledger.

    Choices beyond the first start when the first has its first token: by then its prompt is cached.
    """

    def __init__(
        self, request: ValidRequest, itinerary: Itinerary, start_s: float, deadline_s: float | None, trace: Trace
    ) -> None:
        self._request = request
        self._with = itinerary
        self._start_s = start_s
        self._deadline_s = deadline_s
        self._trace = trace
        self._outbox = Outbox(itinerary.around.settings.outbox_tokens)
        self._choices = [self._choice(number) for number in range(request.n)]
        self._running = request.n
        self._placed: Callable[[], None] = lambda: None
        self._driver: asyncio.Task[None] | None = None
        self._cancelled = ""
        self._ledger: Ledger | None = None

    def start(self) -> None:
        with tracing(self._trace):
            self._driver = asyncio.create_task(self._drive())
        # A task that is cancelled before its first step never runs a line of its own.
        self._driver.add_done_callback(lambda _driver: self._outbox.close_unless_closed(Cancelled(self._cancelled)))

    async def take(self) -> Delta | None:
        """The next delta; None at the end.

        Raises:
            TandemError: what the request ended with.
        """
        return await self._outbox.take()

    def cancel(self, why: str) -> None:
        """End it on every worker; `take` raises `Cancelled`."""
        if self._driver is not None and not self._driver.done():
            self._cancelled = self._cancelled or why
            self._driver.cancel()

    async def ended(self) -> None:
        """Until nothing of it runs here."""
        if self._driver is not None:
            await all_ended({self._driver})

    async def _drive(self) -> None:
        error: TandemError | None = None
        try:
            await self._travel()
        except asyncio.CancelledError:
            error = Cancelled(self._cancelled or "cancelled")
        except TandemError as caught:
            error = caught
        finally:
            self._finish(error or (None if self._running == 0 else InternalError("the journey broke off")))

    async def _travel(self) -> None:
        request, turns = self._request, self._with.turns
        turn = await turns.take(request.tenant, request.priority, len(request.token_ids), request.n, self._deadline_s)
        self._placed = lambda: turns.placed(turn)
        self._with.around.metrics.queue_seconds.observe(self._with.clock.now_s() - self._start_s)
        try:
            remaining_s = None if self._deadline_s is None else self._deadline_s - self._with.clock.now_s()
            async with asyncio.timeout(remaining_s):
                await self._run_choices()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the deadline passed after {self._delivered} tokens") from error
        finally:
            turns.leave(turn)

    async def _run_choices(self) -> None:
        """All of them, or the first error and none."""
        first, *others = self._choices
        tasks = [asyncio.create_task(self._run_choice(first))]
        tasks += [asyncio.create_task(self._run_after(first, other)) for other in others]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await all_ended(tasks)

    async def _run_after(self, first: Choice, other: Choice) -> None:
        await first.first_token.wait()
        await self._run_choice(other)

    async def _run_choice(self, choice: Choice) -> None:
        await choice.run()
        if choice.last is None:
            raise InternalError("a choice ended without a last delta")
        self._running -= 1
        if self._running:
            self._outbox.put(choice.last)
        else:
            self._ledger = choice.ledger.close()
            self._outbox.put(replace(choice.last, usage=self._usage(), ledger=self._ledger))

    def _choice(self, number: int) -> Choice:
        itinerary, request, tokenizer = self._with, self._request, self._with.tokenizer
        ids = (None, None) if tokenizer is None else (tokenizer.token_id(THINK_START), tokenizer.token_id(THINK_END))
        return Choice(
            request,
            number,
            itinerary.around,
            itinerary.lookup,
            itinerary.work_ids,
            itinerary.clock,
            output=ChoiceOutput(
                None if tokenizer is None else tokenizer.token_bytes, request.stop, request.limits.min_tokens
            ),
            reasoning=ReasoningCount(request.token_ids, *ids),
            ledger=LedgerClock(itinerary.clock, self._start_s),
            start_s=self._start_s,
            deadline_s=self._deadline_s,
            emit=self._outbox.put,
            placed=lambda: self._placed(),
        )

    @property
    def _delivered(self) -> int:
        return sum(choice.delivered_tokens for choice in self._choices)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._request.token_ids),
            completion_tokens=self._delivered,
            cached_tokens=self._choices[0].cached_tokens,
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices),
            drafted_tokens=sum(choice.drafted for choice in self._choices),
            accepted_tokens=sum(choice.accepted for choice in self._choices),
        )

    def _finish(self, error: TandemError | None) -> None:
        """Tell the client, the metrics and the explanations how it ended."""
        metrics, first = self._with.around.metrics, self._choices[0]
        metrics.request_seconds.observe(self._with.clock.now_s() - self._start_s)
        if error is not None:
            metrics.count_failure(error)
            metrics.slow_readers.inc(self._outbox.overflowed)
        usage = self._usage()
        if usage.completion_tokens:
            metrics.prompt_tokens.inc(usage.prompt_tokens)
            metrics.cached_tokens.inc(usage.cached_tokens)
            metrics.drafted_tokens.inc(usage.drafted_tokens)
            metrics.accepted_tokens.inc(usage.accepted_tokens)
        finish = first.last.finish_reason if first.last is not None else None
        block_tokens = self._with.around.settings.placement.block_tokens
        outcome = error.reason if error is not None else str(finish)
        total_s = self._with.clock.now_s() - self._start_s
        log.info(
            "request ended", request=self._request.request_id, outcome=outcome, tokens=self._delivered, total_s=total_s
        )
        self._with.explained.put(
            Explanation(
                request_id=self._request.request_id,
                placements=tuple(placement for choice in self._choices for placement in choice.placements),
                ledger=self._ledger or first.ledger.close(),
                resumes=sum(choice.resumes for choice in self._choices),
                outcome=outcome,
                predicted_cached_blocks=first.predicted_blocks,
                actual_cached_blocks=first.cached_tokens // block_tokens,
                trace_id=self._trace.trace_id,
            )
        )
        self._outbox.close(error)
