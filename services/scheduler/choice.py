"""One choice of a request from its first attempt to its last token."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from common.clock import Clock
from common.errors import InternalError, Refused
from common.kv.hashing import chain_hashes, root_hash
from common.request import FinishReason, GeneratedToken, Work
from common.rpc.inference_data import Delta, Placement
from common.telemetry.logs import get_log
from services.scheduler.attempt import Attempt, AttemptFailed, Fault, Preempted
from services.scheduler.choice_output import ChoiceOutput, Piece
from services.scheduler.front_door import ValidRequest
from services.scheduler.ledger import LedgerClock, Part
from services.scheduler.prefix_lookup import PrefixLookup, usable_blocks
from services.scheduler.reasoning import ReasoningCount
from services.scheduler.retry import Setback, retry_pause_s
from services.scheduler.surroundings import Surroundings
from services.scheduler.work_ids import WorkIds

log = get_log(__name__)


class Choice:
    """Attempts until the choice ends. Tokens are taken strictly by position: none twice, none missing.

    `emit` gets every delta but the last; `last` is kept for the request, which knows whether others are still running.
    """

    def __init__(
        self,
        request: ValidRequest,
        number: int,
        around: Surroundings,
        lookup: PrefixLookup,
        work_ids: WorkIds,
        clock: Clock,
        *,
        output: ChoiceOutput,
        reasoning: ReasoningCount,
        ledger: LedgerClock,
        start_s: float,
        deadline_s: float | None,
        emit: Callable[[Delta], None],
        placed: Callable[[], None],
    ) -> None:
        self._request = request
        self._number = number
        self._around = around
        self._lookup = lookup
        self._work_ids = work_ids
        self._clock = clock
        self._output = output
        self._reasoning = reasoning
        self._start_s = start_s
        self._deadline_s = deadline_s
        self._emit = emit
        self._placed = placed
        self._accepted: list[int] = []  # token ids that workers drew, in order; what a resume starts from
        self._progress_s = clock.now_s()
        self._failures = 0
        self._said = ""  # of the last failure, in the log
        self.ledger = ledger
        self.first_token = asyncio.Event()
        self.delivered_tokens = 0
        self.cached_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.resumes = 0
        self.placements: list[Placement] = []
        self.predicted_blocks = 0
        self.last: Delta | None = None

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning.tokens

    async def run(self) -> None:
        """
        Raises:
            TandemError: the choice cannot be brought to its end.
        """
        excluded: frozenset[str] = frozenset()
        while True:
            fault = await self._attempt(excluded)
            if self.last is not None:
                return
            if fault is not None:
                excluded = fault.instances
                self._failures += not isinstance(fault.error, Refused) or not self._accepted
            await self._pause(fault)

    async def _attempt(self, excluded: frozenset[str]) -> Fault | None:
        """One attempt; None when it ended well or was preempted."""
        token_ids = (*self._request.token_ids, *self._accepted)
        work = Work(
            work_id=self._work_ids.draw(),
            scheduler=self._work_ids.identity,
            token_ids=token_ids,
            prompt_tokens=len(self._request.token_ids),
            sampling=replace(self._request.sampling, seed=self._request.sampling.seed + self._number),
            limits=self._request.limits,
            logprobs=self._request.logprobs,
            tenant=self._request.tenant,
            priority=self._request.priority,
            deadline_s=self._deadline_s,
        )
        cached_blocks = await self._ask_index(token_ids)
        self.ledger.enter(Part.RESUME if self._accepted else Part.PREFILL_QUEUE)
        attempt = Attempt(
            work, self._around, self.ledger, self._take, self._placed, excluded=excluded, resumes=bool(self._accepted)
        )
        before = len(self._accepted)
        try:
            await attempt.run(cached_blocks)
        except AttemptFailed as failed:
            return failed.fault
        except Preempted:
            self._around.metrics.preemptions.inc()
            return None
        finally:
            self._account(attempt, cached_blocks, first=before == 0)
        return None

    async def _ask_index(self, token_ids: tuple[int, ...]) -> Mapping[str, int]:
        compatibility = self._around.fleet.compatibility
        if compatibility is None:
            return {}
        if not self._accepted:
            self.ledger.enter(Part.LOOKUP)
        root = root_hash(
            compatibility.model_fingerprint,
            compatibility.block_tokens,
            compatibility.kv_dtype,
            self._request.tenant,
        )
        # The last token is always computed, so a block that ends with it is of no use.
        hashes = chain_hashes(root, token_ids[:-1], compatibility.block_tokens)
        if not hashes:
            return {}
        self._around.metrics.lookups.inc()
        answer = await self._lookup.lookup(hashes)
        if not answer.known:
            self._around.metrics.lookups_without_answer.inc()
        return usable_blocks(answer, self._around.fleet)

    def _take(self, token: GeneratedToken, finish: FinishReason | None) -> bool:
        """Take a token from a worker; whether more are wanted."""
        expected = len(self._request.token_ids) + len(self._accepted)
        if token.position < expected:
            self._around.metrics.fenced_tokens.inc()
            if finish is not None and token.position == expected - 1:
                stop = str(token.token_id) if finish is FinishReason.STOP else ""
                self._end(self._output.end(), finish, stop)
            return self.last is None
        if token.position > expected:
            raise InternalError(f"token at position {token.position} came where {expected} was due")
        self._accepted.append(token.token_id)
        self._observe_token()
        part = self.ledger.part
        self.ledger.enter(Part.DETOKENIZE)
        ends_by_id = finish is FinishReason.STOP
        piece = self._output.feed(token, ends_by_id=ends_by_id)
        if piece.stop:
            self._end(piece, FinishReason.STOP, piece.stop)
        elif finish is not None:
            rest = self._output.end()
            whole = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
            self._end(whole, finish, str(token.token_id) if ends_by_id else "")
        elif piece.text or piece.tokens:
            self._emit(self._delta(piece))
        self.ledger.enter(part)
        return self.last is None

    def _observe_token(self) -> None:
        now_s, metrics = self._clock.now_s(), self._around.metrics
        if len(self._accepted) == 1:
            metrics.time_to_first_token_seconds.observe(now_s - self._start_s)
            self.first_token.set()
        else:
            metrics.inter_token_seconds.observe(now_s - self._progress_s)
        self._progress_s, self._failures = now_s, 0

    def _end(self, piece: Piece, finish: FinishReason, stop: str) -> None:
        self._around.metrics.finished[finish].inc()
        self.last = replace(self._delta(piece), finish_reason=finish, stop=stop)

    def _delta(self, piece: Piece) -> Delta:
        self.delivered_tokens += len(piece.tokens)
        self._around.metrics.generated_tokens.inc(len(piece.tokens))
        for token in piece.tokens:
            self._reasoning.feed(token.token_id)
        return Delta(
            request_id=self._request.request_id,
            choice=self._number,
            text=piece.text,
            token_ids=tuple(token.token_id for token in piece.tokens),
            logprobs=tuple((t.token_id, t.logprobs) for t in piece.tokens if t.logprobs is not None),
        )

    def _account(self, attempt: Attempt, cached_blocks: Mapping[str, int], *, first: bool) -> None:
        report = attempt.report
        self.placements.extend(report.placements)
        self.drafted += report.drafted
        self.accepted += report.accepted
        if first and report.cached_tokens is not None:
            self.cached_tokens = report.cached_tokens
            chosen = report.placements[0].chosen
            self.predicted_blocks = cached_blocks.get(chosen, 0)
            metrics = self._around.metrics
            metrics.predicted_cached_blocks.inc(self.predicted_blocks)
            metrics.actual_cached_blocks.inc(report.cached_tokens // self._around.settings.placement.block_tokens)

    async def _pause(self, fault: Fault | None) -> None:
        """Wait before the next attempt, or give the choice up."""
        setback = Setback(
            error=None if fault is None else fault.error,
            begun=bool(self._accepted),
            failures=self._failures,
            waited_s=self._clock.now_s() - self._progress_s,
        )
        pause_s = retry_pause_s(setback, self._around.settings.retry)
        if fault is not None and pause_s is None:
            raise fault.error
        if self._accepted:
            self.resumes += 1
            self._around.metrics.resumes.inc()
        else:
            self._around.metrics.retries.inc()
        if fault is not None and str(fault.error) != self._said:  # what waits for capacity fails many times a second
            self._said = str(fault.error)
            log.info(
                "attempt failed", request=self._request.request_id, instances=sorted(fault.instances), why=self._said
            )
        self.ledger.enter(Part.RESUME)
        await asyncio.sleep(pause_s or 0.0)
