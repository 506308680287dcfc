"""Prefill and decode engines of one process, joined by copying blocks: what services and transfer do, without them."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from common.clock import Clock, ManualClock
from common.engine.decode_engine import DecodeEngine
from common.engine.events import (
    BlocksReady,
    Failed,
    FirstToken,
    HandoffReady,
    Preempted,
    ReadyBlock,
    Reserved,
    Started,
    Tokens,
)
from common.engine.latent_pool import LatentPool
from common.engine.prefill_engine import PrefillEngine
from common.engine.runner import Runner
from common.engine.sampler import Sampler
from common.engine.settings import DecodeSettings, EngineShape, PrefillSettings
from common.engine.step_gate import AloneGate, StepGate
from common.kv.block_pool import BlockPool
from common.kv.hashing import root_hash
from common.kv.tags import tag
from common.model.base import Model
from common.parallel.base import TensorGroup
from common.parallel.tensor_group import SingleRank
from common.parallel.waits import run_together
from common.request import FinishReason, GeneratedToken, Handoff, Limits, Sampling, Work

GREEDY = Sampling(temperature=0.0)
STEP_S = 0.01
INCARNATION = 5

_ids = itertools.count()


def root(tenant: str) -> bytes:
    return root_hash("test-model", 8, "float32", tenant)


def prompt(length: int, seed: int = 0, vocab_size: int = 97) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(vocab_size), k=length)


def make_work(
    token_ids: Sequence[int],
    max_tokens: int,
    *,
    sampling: Sampling = GREEDY,
    prompt_tokens: int | None = None,
    stop: frozenset[int] = frozenset(),
    min_tokens: int = 0,
    **rest: object,
) -> Work:
    return Work(
        work_id=f"w{next(_ids)}",
        scheduler="s0",
        token_ids=tuple(token_ids),
        prompt_tokens=len(token_ids) if prompt_tokens is None else prompt_tokens,
        sampling=sampling,
        limits=Limits(max_tokens, min_tokens, stop),
        **rest,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Rank:
    """What one rank of a group needs; a leader has a gate, the others follow it."""

    model: Model
    tensor_group: TensorGroup = field(default_factory=SingleRank)
    gate: StepGate | None = field(default_factory=AloneGate)

    def runner(self, shape: EngineShape) -> Runner:
        layers, width = self.model.latent_layers, self.model.latent_width
        latent = LatentPool(shape.total_blocks, layers, shape.block_tokens, width, torch.float32, torch.device("cpu"))
        return Runner(self.model, latent, self.tensor_group, Sampler(), shape.draft_tokens)


class PrefillGroup:
    """All ranks of a group of prefill instances."""

    def __init__(self, ranks: Sequence[Rank], settings: PrefillSettings, clock: Clock) -> None:
        self.runners = [rank.runner(settings.shape) for rank in ranks]
        self.engines = {
            i: PrefillEngine(
                settings,
                self.runners[i],
                BlockPool(settings.shape.total_blocks),
                clock,
                rank.gate,
                root=root,
                incarnation=INCARNATION,
            )
            for i, rank in enumerate(ranks)
            if rank.gate is not None
        }
        self.instances = list(self.engines.values())

    def step(self) -> list:
        return _step(self.runners, self.engines)


class DecodeGroup:
    """All ranks of a group of decode instances."""

    def __init__(self, ranks: Sequence[Rank], settings: DecodeSettings, clock: Clock) -> None:
        self.runners = [rank.runner(settings.shape) for rank in ranks]
        self.engines = {
            i: DecodeEngine(
                settings, self.runners[i], BlockPool(settings.shape.total_blocks), clock, rank.gate, root=root
            )
            for i, rank in enumerate(ranks)
            if rank.gate is not None
        }
        self.instances = list(self.engines.values())

    def step(self) -> list:
        return _step(self.runners, self.engines)


def _step(runners: list[Runner], engines: dict) -> list:
    """One step of every rank; the leaders' events."""
    results = run_together([engines[i].step() if i in engines else r.follow() for i, r in enumerate(runners)])
    return [event for i in engines for event in results[i]]


@dataclass
class Journey:
    """What a client of one piece of work has seen."""

    work: Work
    tokens: list[GeneratedToken] = field(default_factory=list)
    finish: FinishReason | None = None
    error: Exception | None = None
    cached_tokens: list[int] = field(default_factory=list)
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill: int = 0  # which instance of the group
    decode: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None


class Cluster:
    """A prefill group and a decode group. `step` advances both once and moves everything that can move.

    `hold` may keep a transfer from being told done, to act in the gap. In steps that `squeeze` names, decode pools
    have no free block, so that whoever grows just then makes somebody give way.
    """

    def __init__(
        self,
        prefill_ranks: Sequence[Rank],
        decode_ranks: Sequence[Rank],
        prefill: PrefillSettings,
        decode: DecodeSettings,
    ) -> None:
        self.clock = ManualClock()
        self.prefills = PrefillGroup(prefill_ranks, prefill, self.clock)
        self.decodes = DecodeGroup(decode_ranks, decode, self.clock)
        self._steps = 0
        self.journeys: dict[str, Journey] = {}
        self.events: list[object] = []
        self.hold: Callable[[str], bool] = lambda work_id: False
        self.squeeze: Callable[[int], bool] = lambda step: False
        self._ready: dict[str, dict[int, ReadyBlock]] = {}
        self._handoffs: dict[str, Handoff] = {}
        self._reserved: dict[str, Reserved] = {}

    def submit(self, work: Work, *, prefill: int = 0, decode: int = 0) -> Journey:
        journey = Journey(work, prefill=prefill, decode=decode)
        self._submit(journey)
        return journey

    def resume(self, journey: Journey) -> None:
        """What the scheduler does after a preemption: new work of prompt plus tokens sent."""
        old = journey.work
        self.journeys.pop(old.work_id, None)
        journey.work = replace(
            old,
            work_id=f"w{next(_ids)}",
            token_ids=old.token_ids[: old.prompt_tokens] + tuple(journey.token_ids),
        )
        self._submit(journey)

    def run(self, *journeys: Journey, steps: int = 20_000) -> None:
        """Step until the journeys (all, if none are named) are over, and what they leave behind is collected."""
        for _ in range(steps):
            if all(j.over for j in (journeys or tuple(self.journeys.values()))):
                self.settle()
                return
            self.step()
        raise AssertionError(f"not over after {steps} steps")

    def settle(self) -> None:
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self.clock.advance(STEP_S)
        self._take(self.prefills.step())
        self._steps += 1
        squeezed = self.squeeze(self._steps)
        taken = [
            (decode.pool, decode.pool.allocate(decode.pool.counts().available if squeezed else 0))
            for decode in self.decodes.instances
        ]
        self._take(self.decodes.step())
        for pool, blocks in taken:
            pool.release(blocks)
        self._transfer()

    def forget(self, work_id: str) -> None:
        """The transfer ends on both sides, as when its stream breaks."""
        for prefill in self.prefills.instances:
            prefill.cancel(work_id)
        for decode in self.decodes.instances:
            decode.cancel(work_id)
            decode.reader_stopped(work_id)
        for table in (self._ready, self._handoffs, self._reserved):
            table.pop(work_id, None)

    def check_idle(self) -> None:
        for instance in (*self.prefills.instances, *self.decodes.instances):
            instance.check_idle()

    def _submit(self, journey: Journey) -> None:
        self.journeys[journey.work.work_id] = journey
        self.prefills.instances[journey.prefill].submit(journey.work, True)

    def _take(self, events: list) -> None:
        for event in events:
            self.events.append(event)
            journey = self.journeys.get(event.work_id)
            if isinstance(event, Started):
                self._ready[event.work_id] = {}
                if journey is not None:
                    journey.cached_tokens.append(event.cached_tokens)
                    self.decodes.instances[journey.decode].admit(journey.work)
            elif isinstance(event, BlocksReady):
                for block in event.blocks:
                    assert block.index not in self._ready[event.work_id]
                    self._ready[event.work_id][block.index] = block
            elif isinstance(event, FirstToken) and journey is not None:
                self._token(journey, event.token)
                journey.finish = event.finish_reason
            elif isinstance(event, HandoffReady):
                self._handoffs[event.work_id] = event.handoff
            elif isinstance(event, Reserved):
                self._reserved[event.work_id] = event
            elif isinstance(event, Tokens) and journey is not None:
                assert not journey.over
                for token in event.tokens:
                    self._token(journey, token)
                journey.finish = event.finish_reason
                journey.drafted += event.drafted
                journey.accepted += event.accepted
            elif isinstance(event, Preempted) and journey is not None:
                journey.preemptions += 1
                self.resume(journey)
            elif isinstance(event, Failed):
                self.forget(event.work_id)
                if journey is not None and not journey.over:
                    journey.error = event.error

    def _transfer(self) -> None:
        """Read everything whose source and destination are both complete, check tags, and tell both sides."""
        for work_id, handoff in [*self._handoffs.items()]:
            if work_id not in self._reserved or self.hold(work_id):
                continue
            reserved, ready = self._reserved.pop(work_id), self._ready.pop(work_id)
            del self._handoffs[work_id]
            assert sorted(ready) == list(range(len(reserved.blocks)))
            journey = self.journeys[work_id]
            prefill = self.prefills.instances[journey.prefill]
            decode = self.decodes.instances[journey.decode]
            wanted = [ready[i] for i in range(reserved.cached_blocks, len(reserved.blocks))]
            here = decode.runner.pool
            places = list(reserved.blocks[reserved.cached_blocks :])
            here.copy_from(prefill.runner.pool, [block.block for block in wanted], places)
            for block, place in zip(wanted, places, strict=True):
                (content,) = here.content_hashes(
                    [place], full=bool(block.chain_hash), has_mtp=decode.runner.model.has_mtp
                )
                assert tag(content, block.chain_hash, INCARNATION) == block.tag
            prefill.release_lease(work_id)
            decode.landed(work_id, handoff)

    @staticmethod
    def _token(journey: Journey, token: GeneratedToken) -> None:
        assert token.position == journey.work.prompt_tokens + len(journey.tokens)
        journey.tokens.append(token)


class Pair(Cluster):
    """One prefill and one decode instance over one model."""

    def __init__(self, model: Model, prefill: PrefillSettings, decode: DecodeSettings) -> None:
        super().__init__([Rank(model)], [Rank(model)], prefill, decode)
        (self.prefill,) = self.prefills.instances
        (self.decode,) = self.decodes.instances


MakePair = Callable[..., Pair]
