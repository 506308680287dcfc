"""Prefill: prompts in, latent and first tokens out. Decides; the Runner computes."""

import math
from collections.abc import Callable

from common.clock import Clock
from common.engine.draw_rule import DrawRule
from common.engine.events import BlocksReady, EngineLoad, Failed, FirstToken, HandoffReady, PrefillEvent, Started
from common.engine.prefill_plan import Chunk, PromptState, plan_chunks
from common.engine.prefill_rate import PrefillRate
from common.engine.ready_blocks import ReadyBlocks
from common.engine.runner import Runner, SequenceDraws, StepResult
from common.engine.sequence import PrefillSequence, StepTime, check_queue, check_work, end_position, finish_reason
from common.engine.settings import PrefillSettings
from common.engine.step_gate import StepGate
from common.engine.step_plan import SequenceStep, StepPlan
from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequest,
    InternalError,
    InvalidInput,
    LeaseLost,
    TandemError,
)
from common.kv.block_pool import BlockPool
from common.kv.hashing import chain_hashes
from common.kv.leases import LeaseTable
from common.model.batch import AttentionForm
from common.parallel.waits import Waits
from common.request import FinishReason, GeneratedToken, Handoff, Work


class PrefillEngine:
    """One instance's prefill. Not thread-safe: its engine thread calls everything.

    Work is waiting, then computing; with `keep_for_decode` its blocks then stay under a read lease until the reader
    releases it, somebody cancels, or `lease_s` pass on this clock. Work that does not get there ends in `Failed`.

    Args:
        root: tenant -> parent hash of its first blocks.
        incarnation: this process's, part of every tag.
        early: receives events that should not wait for the step's end; without it they are in `step`'s result.
    """

    def __init__(
        self,
        settings: PrefillSettings,
        runner: Runner,
        pool: BlockPool,
        clock: Clock,
        gate: StepGate,
        *,
        root: Callable[[str], bytes],
        incarnation: int,
        early: Callable[[list[PrefillEvent]], None] | None = None,
    ) -> None:
        self.settings = settings
        self.pool = pool
        self.early = early
        self._shape = settings.shape
        self.runner = runner
        self._clock = clock
        self.gate = gate
        self._root = root
        self._leases = LeaseTable(clock)
        self._ready = ReadyBlocks(pool, runner.pool, incarnation, has_mtp=runner.model.has_mtp)
        self._waiting: dict[str, PrefillSequence] = {}
        self._computing: dict[str, PrefillSequence] = {}
        self._held: set[str] = set()  # computed; the lease alone keeps the blocks
        self._submitted = 0
        self._events: list[PrefillEvent] = []
        self._blocked = False
        self._step = 0
        self._step_time = StepTime()
        self.rate = PrefillRate()

    # Commands

    def submit(self, work: Work, keep_for_decode: bool) -> None:
        """Queue work.

        Raises:
            InvalidInput: this instance can never serve it.
            DuplicateRequest: the id is known.
            Overloaded: the queue is full.
        """
        if work.work_id in self._waiting or work.work_id in self._computing or work.work_id in self._held:
            raise DuplicateRequest("work_id", work.work_id, "is already here")
        check_work(work, self._shape, self.runner.model.vocab_size)
        needed = self._blocks_needed(work)
        if needed > self._shape.total_blocks:
            raise InvalidInput(
                "token_ids",
                f"{len(work.token_ids)} tokens",
                f"need {needed} blocks of {self._shape.block_tokens}, this instance has {self._shape.total_blocks}",
            )
        check_queue(len(self._waiting), self._shape)
        hashes = chain_hashes(self._root(work.tenant), work.token_ids, self._shape.block_tokens)
        cached = self.pool.cached_prefix_blocks(hashes[: self._reusable_blocks(work)])
        self._waiting[work.work_id] = PrefillSequence(
            work, keep_for_decode, self._submitted, self._clock.now_s(), hashes, cached * self._shape.block_tokens
        )
        self._submitted += 1

    def cancel(self, work_id: str) -> bool:
        """End work in whatever phase it is; its blocks are back at once. False when it is not here."""
        return self._end(work_id, Cancelled(f"{work_id} was cancelled"))

    def release_lease(self, work_id: str) -> bool:
        """The reader is done, or gives up. Work still computing goes on for its first token."""
        blocks = self._leases.release(work_id)
        self.pool.release(blocks)
        self._held.discard(work_id)
        return bool(blocks)

    def renew_lease(self, work_id: str) -> bool:
        """The reader is still reading. False when the lease has ended."""
        return self._leases.renew(work_id, self._clock.now_s() + self.settings.lease_s)

    def fail_all(self, error: TandemError) -> list[PrefillEvent]:
        """End everything with `error`: the instance cannot go on."""
        for work_id in [*self._waiting, *self._computing, *self._held]:
            self._end(work_id, error)
        return self._drain()

    # State

    @property
    def steps(self) -> int:
        """Steps taken so far, without those that found nothing to run."""
        return self._step

    def has_work(self) -> bool:
        """Something waits, computes or is leased, or the group's next step is due."""
        return bool(self._waiting or self._computing or self._held or self._events or not self.gate.parked)

    def load(self) -> EngineLoad:
        counts = self.pool.counts()
        sequences = [*self._waiting.values(), *self._computing.values()]
        return EngineLoad(
            queued_tokens=sum(sequence.remaining_tokens for sequence in sequences),
            queued=len(self._waiting),
            running=len(self._computing),
            running_tokens=sum(sequence.computed_tokens for sequence in self._computing.values()),
            free_blocks=counts.available,
            total_blocks=counts.total,
            step_s=self._step_time.mean_s,
            tokens_per_s=self.rate.tokens_per_s,
        )

    def check_idle(self) -> None:
        """Raise InternalError unless no work, lease or block reference is left."""
        self.pool.check()
        left = len(self._waiting) + len(self._computing) + len(self._leases) + len(self._held)
        if left or not self.pool.counts().idle:
            raise InternalError(
                f"prefill is not idle: {len(self._waiting)} waiting, {len(self._computing)} computing, "
                f"{len(self._leases)} leases, {self.pool.counts()}"
            )

    # The step

    def step(self) -> Waits[list[PrefillEvent]]:
        """Sweep, start what is due and fits, and compute one step's chunks together with the group."""
        self._sweep()
        chunks = self._plan_chunks()
        if chunks:
            self.gate.wake()
        yield  # in one process: every instance has decided whether to wake the group before any looks
        schedule = self.gate.enter()
        if schedule is None:
            yield from self.runner.pause()
            return self._drain()
        self._flush_early()
        began_s = self._clock.now_s()
        self._step += 1
        members = [self._computing[chunk.work_id] for chunk in chunks]
        steps = tuple(self._sequence_step(s, chunk.tokens) for s, chunk in zip(members, chunks, strict=True))
        ending = sum(step.following is None for step in steps)
        plan = StepPlan(
            number=self._step,
            sequences=steps,
            form=AttentionForm.MULTI_HEAD,
            schedule=schedule,
            draft_passes=self._shape.draft_tokens,
            announce=len(self._computing) - ending + (0 if self._blocked else len(self._waiting)),
        )
        rules = [sequence.rule for sequence in members if sequence.rule is not None]
        try:
            result = yield from self.runner.lead(plan, rules, lambda draws: self._first_tokens(members, draws))
        except RuntimeError as error:  # what torch raises, out of memory included
            failure = InternalError(f"prefill step {self._step} failed: {error}")
            if not (self.gate.alone and self.runner.alone):
                raise failure from error
            for sequence in members:
                self._end(sequence.work.work_id, failure)
            self.gate.leave(())
            return self._drain()
        self.gate.leave(result.announced)
        self._take(members, steps, result)
        step_s = self._clock.now_s() - began_s
        self._step_time.add(step_s)
        if chunks:  # the step may have been for others of the group alone
            self.rate.add(sum(chunk.tokens for chunk in chunks), step_s)
        return self._drain()

    def _sweep(self) -> None:
        """What time alone ends. Runs every step, whether or not requests arrive."""
        now_s = self._clock.now_s()
        for lease in self._leases.expire():
            self.pool.release(lease.blocks)
            self._held.remove(lease.work_id)
            error = LeaseLost(f"the lease was neither released nor renewed for {self.settings.lease_s} s")
            self._events.append(Failed(lease.work_id, error))
        for sequence in [*self._waiting.values(), *self._computing.values()]:
            deadline_s = sequence.work.deadline_s
            if deadline_s is not None and deadline_s <= now_s:
                self._end(sequence.work.work_id, DeadlineExceeded("the deadline passed during prefill"))

    def _plan_chunks(self) -> list[Chunk]:
        """Share the step among prompts under way and waiting ones; those whose turn it is get their blocks.

        A prompt starts when it is about to be computed and not before, so that nothing is held for it in vain. The
        first that does not fit keeps the rest waiting: space that frees up is its, however small the others are. The
        order's aging bounds how long that can last for any of them.
        """
        self._blocked = False
        while True:
            places = 0 if self._blocked else self._shape.max_running - len(self._computing)
            candidates = [*self._computing.values(), *(self._waiting.values() if places else ())]
            chunks = plan_chunks(
                [self._state(sequence) for sequence in candidates],
                chunk_tokens=self.settings.chunk_tokens,
                max_step_tokens=self._shape.max_step_tokens,
                aging_tokens_per_s=self.settings.aging_tokens_per_s,
            )
            due = [self._waiting[chunk.work_id] for chunk in chunks if chunk.work_id in self._waiting][:places]
            if not due:
                return [chunk for chunk in chunks if chunk.work_id in self._computing]
            self._blocked = not all(self._start(sequence) for sequence in due)

    def _start(self, sequence: PrefillSequence) -> bool:
        work, pool = sequence.work, self.pool
        cached = pool.match(sequence.hashes[: self._reusable_blocks(work)])
        missing = self._blocks_needed(work) - len(cached)
        if missing > pool.counts().available:
            pool.release(cached)
            return False
        sequence.blocks = cached + pool.allocate(missing)
        sequence.started_s = self._clock.now_s()
        sequence.computed_tokens = len(cached) * self._shape.block_tokens
        sequence.rule = DrawRule(work, self.runner.model.vocab_size, self.runner.device)
        del self._waiting[work.work_id]
        self._computing[work.work_id] = sequence
        prompt_blocks = sequence.blocks[: self._shape.blocks_for(len(work.token_ids))]
        queue_s = sequence.started_s - sequence.submitted_s
        self._events.append(Started(work.work_id, sequence.computed_tokens, len(prompt_blocks), queue_s))
        if sequence.keep_for_decode:
            pool.retain(prompt_blocks)
            self._leases.grant(work.work_id, prompt_blocks, math.inf)  # its time starts when the last block is ready
            self._announce(sequence, len(cached))
        return True

    def _sequence_step(self, sequence: PrefillSequence, tokens: int) -> SequenceStep:
        token_ids, start = sequence.work.token_ids, sequence.computed_tokens
        end = start + tokens
        drafts_wanted = sequence.keep_for_decode
        return SequenceStep(
            token_ids=token_ids[start:end],
            start=start,
            blocks=tuple(sequence.blocks),
            following=token_ids[end] if end < len(token_ids) else None,
            propose_before=end_position(sequence.work, self._shape.context_tokens) - 1 if drafts_wanted else 0,
        )

    def _first_tokens(self, members: list[PrefillSequence], draws: tuple[SequenceDraws, ...]) -> None:
        for sequence, drawn in zip(members, draws, strict=True):
            if drawn.token_ids and drawn.possible:
                token = self._token(sequence, drawn)
                prefill_s = self._clock.now_s() - sequence.started_s
                self._events.append(FirstToken(sequence.work.work_id, token, self._finish(sequence, token), prefill_s))
        self._flush_early()

    def _take(self, members: list[PrefillSequence], steps: tuple[SequenceStep, ...], result: StepResult) -> None:
        for sequence, step, drawn, drafts in zip(members, steps, result.draws, result.drafts, strict=True):
            work_id = sequence.work.work_id
            if not drawn.possible:
                self._end(work_id, InternalError("the model's logits hold nothing that can be drawn"))
                continue
            before = sequence.computed_tokens // self._shape.block_tokens
            sequence.computed_tokens += len(step.token_ids)
            full = sequence.computed_tokens // self._shape.block_tokens
            self._ready.complete(sequence.blocks, sequence.hashes, before, full)
            if sequence.keep_for_decode:
                self._announce(sequence, full)
            if drawn.token_ids:
                self._finish_prompt(sequence, drawn, drafts)

    def _finish_prompt(self, sequence: PrefillSequence, drawn: SequenceDraws, drafts: tuple[int, ...]) -> None:
        work_id, tokens = sequence.work.work_id, len(sequence.work.token_ids)
        if sequence.keep_for_decode:
            index, rest = divmod(tokens, self._shape.block_tokens)
            if rest:
                self._events.append(BlocksReady(work_id, (self._ready.partial(index, sequence.blocks[index], rest),)))
            token = self._token(sequence, drawn)
            self._events.append(HandoffReady(work_id, Handoff(token, drafts, self._finish(sequence, token))))
        del self._computing[work_id]
        self.pool.release(sequence.blocks)
        leased = self._leases.release(work_id)
        if leased:
            self._leases.grant(work_id, leased, self._clock.now_s() + self.settings.lease_s)
            self._held.add(work_id)

    def _announce(self, sequence: PrefillSequence, full: int) -> None:
        first = sequence.announced_blocks
        if full > first:
            blocks = self._ready.full(sequence.blocks, sequence.hashes, first, full)
            self._events.append(BlocksReady(sequence.work.work_id, tuple(blocks)))
            sequence.announced_blocks = full

    def _end(self, work_id: str, error: TandemError) -> bool:
        sequence = self._waiting.pop(work_id, None) or self._computing.pop(work_id, None)
        leased = self._leases.release(work_id)
        if sequence is None and not leased:
            return False
        if sequence is not None:
            self.pool.release(sequence.blocks)
        self.pool.release(leased)
        self._held.discard(work_id)
        self._events.append(Failed(work_id, error))
        return True

    def _token(self, sequence: PrefillSequence, drawn: SequenceDraws) -> GeneratedToken:
        return GeneratedToken(len(sequence.work.token_ids), drawn.token_ids[0], drawn.logprobs[0])

    def _finish(self, sequence: PrefillSequence, token: GeneratedToken) -> FinishReason | None:
        return finish_reason(sequence.work, token.token_id, token.position, self._shape.context_tokens)

    def _reusable_blocks(self, work: Work) -> int:
        """The last token is always computed: without it there is nothing to draw from."""
        return (len(work.token_ids) - 1) // self._shape.block_tokens

    def _blocks_needed(self, work: Work) -> int:
        """Drafts after the first write MTP slots beyond the prompt."""
        tokens = len(work.token_ids)
        drafting = min(tokens + self._shape.draft_tokens - 1, end_position(work, self._shape.context_tokens) - 1)
        return self._shape.blocks_for(max(tokens, drafting))

    def _state(self, sequence: PrefillSequence) -> PromptState:
        return PromptState(
            work_id=sequence.work.work_id,
            remaining_tokens=sequence.remaining_tokens,
            waited_s=self._clock.now_s() - sequence.submitted_s,
            priority=sequence.work.priority,
            resumed=sequence.work.generated_tokens > 0,
            order=sequence.order,
        )

    def _flush_early(self) -> None:
        if self.early is not None and self._events:
            self.early(self._drain())

    def _drain(self) -> list[PrefillEvent]:
        events, self._events = self._events, []
        return events
