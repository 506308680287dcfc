"""Decode: takes over prompts whose latent is elsewhere and generates. Decides; the Runner computes."""

from collections.abc import Callable

from common.clock import Clock
from common.engine.decode_plan import WorkState, growth_blocks, rank, room_to_keep
from common.engine.draw_rule import DrawRule
from common.engine.events import DecodeEvent, EngineLoad, Failed, Preempted, Reserved, Tokens
from common.engine.runner import Runner, SequenceDraws, StepResult
from common.engine.sequence import (
    DecodePhase,
    DecodeSequence,
    StepTime,
    check_queue,
    check_work,
    end_position,
    finish_reason,
)
from common.engine.settings import DecodeSettings
from common.engine.speculation import slots_written
from common.engine.step_gate import StepGate
from common.engine.step_plan import SequenceStep, StepPlan
from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequest,
    InternalError,
    Interrupted,
    InvalidInput,
    TandemError,
)
from common.kv.block_pool import BlockPool
from common.kv.hashing import chain_hashes
from common.model.batch import AttentionForm
from common.parallel.waits import Waits
from common.request import FinishReason, GeneratedToken, Handoff, Work


class DecodeEngine:
    """One instance's decode. Not thread-safe: its engine thread calls everything.

    Work is queued until blocks are reserved for it, landing while its latent is read into them, running from `landed`
    on. It ends with a finish reason, `Preempted` or `Failed`, once. Blocks that a reader may still write are kept until
    the reader says that it has stopped (`reader_stopped`, `landed` or `transfer_failed`), however the work ended.

    Args:
        root: tenant -> parent hash of its first blocks.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        runner: Runner,
        pool: BlockPool,
        clock: Clock,
        gate: StepGate,
        *,
        root: Callable[[str], bytes],
    ) -> None:
        self.settings = settings
        self.pool = pool
        self._shape = settings.shape
        self.runner = runner
        self._clock = clock
        self.gate = gate
        self._root = root
        self._work: dict[str, DecodeSequence] = {}
        self._admitted = 0
        self._events: list[DecodeEvent] = []
        self._step = 0
        self._step_time = StepTime()
        self._landed_blocks: list[int] = []  # since the last step

    # Commands

    def admit(self, work: Work) -> int:
        """Queue work; returns how many were queued before it.

        Raises:
            InvalidInput: this instance can never serve it.
            DuplicateRequest: the id is known.
            Overloaded: the queue is full.
        """
        if work.work_id in self._work:
            raise DuplicateRequest("work_id", work.work_id, "is already here")
        check_work(work, self._shape, self.runner.model.vocab_size)
        most = self._shape.blocks_for(end_position(work, self._shape.context_tokens))
        if most > self._shape.total_blocks:
            raise InvalidInput(
                "limits.max_tokens",
                work.limits.max_tokens,
                f"with {work.prompt_tokens} prompt tokens it may need {most} blocks of {self._shape.block_tokens}, "
                f"this instance has {self._shape.total_blocks}",
            )
        ahead = len(self._in_phase(DecodePhase.QUEUED))
        check_queue(ahead, self._shape)
        hashes = chain_hashes(self._root(work.tenant), work.token_ids, self._shape.block_tokens)
        self._work[work.work_id] = DecodeSequence(
            work, self._admitted, self._clock.now_s(), list(work.token_ids), hashes
        )
        self._admitted += 1
        return ahead

    def landed(self, work_id: str, handoff: Handoff) -> bool:
        """All latent is in the reserved blocks. False when the work has ended meanwhile."""
        sequence = self._work.get(work_id)
        if sequence is None or sequence.phase is not DecodePhase.LANDING:
            self.reader_stopped(work_id)
            return False
        token = handoff.first_token
        if token.position != len(sequence.token_ids):
            self._fail(sequence, InternalError(f"handoff at position {token.position}, not {len(sequence.token_ids)}"))
            self.reader_stopped(work_id)
            return False
        sequence.phase = DecodePhase.RUNNING
        self._landed_blocks.extend(sequence.blocks[sequence.published_blocks :])
        if handoff.finish_reason is not None:  # nothing is left to do, but the prompt may be wanted again
            sequence.token_ids.append(token.token_id)
            self._leave(sequence)
            return True
        sequence.rule = DrawRule(sequence.work, self.runner.model.vocab_size, self.runner.device)
        self._append(sequence, (token.token_id,))
        sequence.drafts = handoff.draft_token_ids[: self._shape.draft_tokens]
        self._publish(sequence)
        return True

    def transfer_failed(self, work_id: str, error: TandemError) -> None:
        """The reader has given up and writes no more."""
        sequence = self._work.get(work_id)
        if sequence is not None and sequence.phase is DecodePhase.LANDING:
            self._fail(sequence, error)
        self.reader_stopped(work_id)

    def reader_stopped(self, work_id: str) -> bool:
        """Nothing will be written any more into the blocks of work that ended while it landed."""
        sequence = self._work.get(work_id)
        if sequence is None or sequence.phase is not DecodePhase.LEAVING:
            return False
        del self._work[work_id]
        self.pool.release(sequence.blocks)
        return True

    def cancel(self, work_id: str) -> bool:
        """End work in whatever phase it is. False when it is not here.

        If it was landing, its blocks come back when the reader has stopped.
        """
        sequence = self._work.get(work_id)
        if sequence is None or sequence.phase is DecodePhase.LEAVING:
            return False
        self._fail(sequence, Cancelled(f"{work_id} was cancelled"))
        return True

    def fail_all(self, error: TandemError) -> list[DecodeEvent]:
        """End everything with `error`: the instance cannot go on."""
        for sequence in [*self._work.values()]:
            if sequence.phase is not DecodePhase.LEAVING:
                self._fail(sequence, error)
        return self._drain()

    # State

    @property
    def steps(self) -> int:
        """Steps taken so far, without those that found nothing to run."""
        return self._step

    def has_work(self) -> bool:
        """Something is here, or the group's next step is due."""
        return bool(self._work or self._events or not self.gate.parked)

    def load(self) -> EngineLoad:
        counts = self.pool.counts()
        running = self._in_phase(DecodePhase.RUNNING)
        joining = self._in_phase(DecodePhase.QUEUED, DecodePhase.LANDING)
        return EngineLoad(
            queued_tokens=sum(len(sequence.token_ids) for sequence in joining),
            queued=len(joining),
            running=len(running),
            running_tokens=sum(sequence.last_position for sequence in running),
            free_blocks=counts.available,
            total_blocks=counts.total,
            step_s=self._step_time.mean_s,
        )

    def check_idle(self) -> None:
        """Raise InternalError unless no work and no block reference is left."""
        self.pool.check()
        if self._work or not self.pool.counts().idle:
            phases = sorted(sequence.phase.name for sequence in self._work.values())
            raise InternalError(f"decode is not idle: {phases}, {self.pool.counts()}")

    # The step

    def step(self) -> Waits[list[DecodeEvent]]:
        """Sweep, make room, reserve for queued work, and advance every running sequence together with the group."""
        self._sweep()
        self._make_room()
        self._reserve_queued()
        members = self._in_phase(DecodePhase.RUNNING)
        if members:
            self.gate.wake()
        yield  # in one process: every instance has decided whether to wake the group before any looks
        schedule = self.gate.enter()
        if schedule is None:
            yield from self.runner.pause()
            return self._drain()
        began_s = self._clock.now_s()
        self._step += 1
        plan = StepPlan(
            number=self._step,
            sequences=tuple(self._sequence_step(sequence) for sequence in members),
            form=AttentionForm.ABSORBED,
            schedule=schedule,
            draft_passes=self._shape.draft_tokens,
            announce=len(members),
            landed_blocks=tuple(self._landed_blocks),
        )
        self._landed_blocks.clear()
        rules = [sequence.rule for sequence in members if sequence.rule is not None]
        try:
            result = yield from self.runner.lead(plan, rules)
        except RuntimeError as error:  # what torch raises, out of memory included
            failure = InternalError(f"decode step {self._step} failed: {error}")
            if not (self.gate.alone and self.runner.alone):
                raise failure from error
            for sequence in members:
                self._fail(sequence, failure)
            self.gate.leave(())
            return self._drain()
        self.gate.leave(result.announced)
        self._take(members, plan, result)
        self._step_time.add(self._clock.now_s() - began_s)
        return self._drain()

    def _sweep(self) -> None:
        now_s = self._clock.now_s()
        for sequence in [*self._work.values()]:
            deadline_s = sequence.work.deadline_s
            if deadline_s is not None and deadline_s <= now_s and sequence.phase is not DecodePhase.LEAVING:
                self._fail(sequence, DeadlineExceeded("the deadline passed during decode"))

    def _make_room(self) -> None:
        """Give running work the blocks that its next step writes; the least important give way."""
        order = rank(self._state(sequence) for sequence in self._in_phase(DecodePhase.RUNNING))
        while order:
            sequence = self._work[order.pop(0)]
            missing = self._shape.blocks_for(self._slots_needed(sequence)) - len(sequence.blocks)
            while missing > self.pool.counts().available and sequence.work.work_id in self._work:
                victim = self._work[order.pop() if order else sequence.work.work_id]
                self._leave(victim)
                self._events.append(Preempted(victim.work.work_id))
            if missing > 0 and sequence.work.work_id in self._work:
                sequence.blocks.extend(self.pool.allocate(missing))

    def _reserve_queued(self) -> None:
        """Reserve for queued work in order of rank what growth does not need. The first that does not fit keeps the
        others waiting, so that space that frees up is its.
        """
        active = self._in_phase(DecodePhase.RUNNING, DecodePhase.LANDING)
        places = self._shape.max_running - len(active)
        queued = self._in_phase(DecodePhase.QUEUED)
        if not places or not queued:
            return
        room = room_to_keep(
            [self._state(sequence) for sequence in active], self.settings.growth_tokens, self._shape.block_tokens
        )
        for work_id in rank(self._state(sequence) for sequence in queued):
            if places == 0 or not self._reserve(self._work[work_id], room):
                return
            places -= 1
            room += growth_blocks(
                self._state(self._work[work_id]), self.settings.growth_tokens, self._shape.block_tokens
            )

    def _reserve(self, sequence: DecodeSequence, room: int) -> bool:
        tokens = len(sequence.token_ids)
        # The block of the last prompt token is always read: an equal cached one would do, but blocks that decode goes
        # on writing must be its own.
        cached = self.pool.match(sequence.hashes[: (tokens - 1) // self._shape.block_tokens])
        missing = self._shape.blocks_for(tokens) - len(cached)
        own_growth = growth_blocks(self._state(sequence), self.settings.growth_tokens, self._shape.block_tokens)
        if own_growth - len(cached) + room > self.pool.counts().available:
            self.pool.release(cached)
            return False
        sequence.blocks = cached + self.pool.allocate(missing)
        sequence.published_blocks = len(cached)
        sequence.phase = DecodePhase.LANDING
        queue_s = self._clock.now_s() - sequence.admitted_s
        self._events.append(Reserved(sequence.work.work_id, tuple(sequence.blocks), queue_s, len(cached)))
        return True

    def _sequence_step(self, sequence: DecodeSequence) -> SequenceStep:
        return SequenceStep(
            token_ids=(sequence.token_ids[-1], *sequence.drafts),
            start=sequence.last_position,
            blocks=tuple(sequence.blocks),
            drafts=len(sequence.drafts),
            propose_before=end_position(sequence.work, self._shape.context_tokens) - 1,
        )

    def _take(self, members: list[DecodeSequence], plan: StepPlan, result: StepResult) -> None:
        for sequence, step, drawn, drafts in zip(members, plan.sequences, result.draws, result.drafts, strict=True):
            if not drawn.possible:
                self._fail(sequence, InternalError("the model's logits hold nothing that can be drawn"))
                continue
            tokens, reason = self._gained(sequence, drawn)
            self._append(sequence, tuple(token.token_id for token in tokens))
            sequence.drafts = drafts
            accepted = min(drawn.accepted, len(tokens))
            self._events.append(Tokens(sequence.work.work_id, tokens, reason, step.drafts, accepted))
            if reason is not None:
                self._leave(sequence)

    def _gained(
        self, sequence: DecodeSequence, drawn: SequenceDraws
    ) -> tuple[tuple[GeneratedToken, ...], FinishReason | None]:
        """The step's tokens up to the one that ends the work; what was accepted beyond it never happened."""
        tokens: list[GeneratedToken] = []
        first = len(sequence.token_ids)
        for position, (token_id, logprobs) in enumerate(zip(drawn.token_ids, drawn.logprobs, strict=True), first):
            tokens.append(GeneratedToken(position, token_id, logprobs))
            reason = finish_reason(sequence.work, token_id, position, self._shape.context_tokens)
            if reason is not None:
                return tuple(tokens), reason
        return tuple(tokens), None

    def _append(self, sequence: DecodeSequence, token_ids: tuple[int, ...]) -> None:
        sequence.token_ids.extend(token_ids)
        if sequence.rule is not None:
            sequence.rule.append(token_ids)

    def _publish(self, sequence: DecodeSequence) -> None:
        """Offer complete blocks to the prefix cache. The last token is in none: its latent is still due."""
        block_tokens = self._shape.block_tokens
        full = sequence.last_position // block_tokens
        named = len(sequence.hashes)
        if full > named:
            parent = sequence.hashes[-1] if sequence.hashes else self._root(sequence.work.tenant)
            fresh = sequence.token_ids[named * block_tokens : full * block_tokens]
            sequence.hashes.extend(chain_hashes(parent, fresh, block_tokens))
        for index in range(sequence.published_blocks, full):
            parent_hash = sequence.hashes[index - 1] if index else None
            self.pool.publish(sequence.blocks[index], sequence.hashes[index], parent_hash)
        sequence.published_blocks = max(sequence.published_blocks, full)

    def _leave(self, sequence: DecodeSequence) -> None:
        """Take running work out of the batch; what it computed stays in the cache while there is room."""
        self._publish(sequence)
        del self._work[sequence.work.work_id]
        self.pool.release(sequence.blocks)

    def _fail(self, sequence: DecodeSequence, error: TandemError) -> None:
        self._events.append(Failed(sequence.work.work_id, error))
        if sequence.phase is DecodePhase.LANDING:
            sequence.phase = DecodePhase.LEAVING
            return
        if sequence.phase is DecodePhase.RUNNING and isinstance(error, Interrupted):
            self._publish(sequence)  # nothing is wrong with what was computed
        del self._work[sequence.work.work_id]
        self.pool.release(sequence.blocks)

    def _in_phase(self, *phases: DecodePhase) -> list[DecodeSequence]:
        return [sequence for sequence in self._work.values() if sequence.phase in phases]

    def _slots_needed(self, sequence: DecodeSequence) -> int:
        slots = slots_written(sequence.last_position, len(sequence.drafts), self._shape.draft_tokens)
        return min(slots, end_position(sequence.work, self._shape.context_tokens))

    def _state(self, sequence: DecodeSequence) -> WorkState:
        return WorkState(
            work_id=sequence.work.work_id,
            tokens=len(sequence.token_ids),
            end_tokens=end_position(sequence.work, self._shape.context_tokens),
            blocks=len(sequence.blocks),
            priority=sequence.work.priority,
            resumed=sequence.work.generated_tokens > 0,
            order=sequence.order,
        )

    def _drain(self) -> list[DecodeEvent]:
        events, self._events = self._events, []
        return events
