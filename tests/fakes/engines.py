"""Prefill and decode engines of one process, joined by copying blocks: what services and transfer do, without them."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from common.clock import ManualClock
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
from common.parallel.waits import run
from common.request import FinishReason, GeneratedToken, Handoff, Limits, Sampling, Work

GREEDY = Sampling(temperature=0.0)
STEP_S = 0.01


def root(tenant: str) -> bytes:
    return root_hash("test-model", 8, "float32", tenant)


_ids = itertools.count()


def make_work(
    token_ids: list[int] | tuple[int, ...],
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


def runner(model: Model, shape: EngineShape, group: TensorGroup, undrawable: torch.Tensor | None = None) -> Runner:
    latent = LatentPool(
        shape.total_blocks,
        model.latent_layers,
        shape.block_tokens,
        model.latent_width,
        torch.float32,
        torch.device("cpu"),
    )
    return Runner(model, latent, group, Sampler(undrawable), shape.draft_tokens)


class Alone:
    """A tensor-parallel group of one."""

    rank = 0
    ranks = 1

    def broadcast(self, x):
        yield from ()
        return x

    broadcast_object = reduce_scatter = all_gather = broadcast


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

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None


class Pair:
    """One prefill and one decode instance. `step` advances both once and moves everything that can move.

    `hold` may keep a transfer from being told done, to act in the gap.
    """

    def __init__(
        self,
        model: Model,
        prefill: PrefillSettings,
        decode: DecodeSettings,
        *,
        group: TensorGroup | None = None,
        undrawable: torch.Tensor | None = None,
        gates: tuple[StepGate, StepGate] | None = None,
        decode_model: Model | None = None,
        root: Callable[[str], bytes] = root,
    ) -> None:
        self.clock = ManualClock()
        gates = gates or (AloneGate(), AloneGate())
        self.prefill_runner = runner(model, prefill.shape, group or Alone(), undrawable)
        self.decode_runner = runner(decode_model or model, decode.shape, group or Alone(), undrawable)
        self.prefill = PrefillEngine(
            prefill,
            self.prefill_runner,
            BlockPool(prefill.shape.total_blocks),
            self.clock,
            gates[0],
            root=root,
            incarnation=5,
        )
        self.decode = DecodeEngine(
            decode, self.decode_runner, BlockPool(decode.shape.total_blocks), self.clock, gates[1], root=root
        )
        self.journeys: dict[str, Journey] = {}
        self.events: list[object] = []
        self.hold: Callable[[str], bool] = lambda work_id: False
        self._ready: dict[str, dict[int, ReadyBlock]] = {}
        self._handoffs: dict[str, Handoff] = {}
        self._reserved: dict[str, Reserved] = {}

    def submit(self, work: Work) -> Journey:
        journey = Journey(work)
        self.journeys[work.work_id] = journey
        self.prefill.submit(work, True)
        return journey

    def resume(self, journey: Journey) -> None:
        """What the scheduler does after a preemption: new work of prompt plus tokens sent."""
        old = journey.work
        fresh = replace(
            make_work(old.token_ids, 1),
            token_ids=old.token_ids[: old.prompt_tokens] + tuple(journey.token_ids),
            prompt_tokens=old.prompt_tokens,
            sampling=old.sampling,
            limits=old.limits,
            logprobs=old.logprobs,
            priority=old.priority,
        )
        journey.work = fresh
        del self.journeys[old.work_id]
        self.journeys[fresh.work_id] = journey
        self.prefill.submit(fresh, True)

    def run(self, *journeys: Journey, steps: int = 20_000) -> None:
        """Step until the journeys (all, if none are named) are over."""
        for _ in range(steps):
            if all(j.over for j in (journeys or tuple(self.journeys.values()))):
                self.settle()
                return
            self.step()
        raise AssertionError(f"not over after {steps} steps")

    def settle(self) -> None:
        """A few steps more, so that what is left behind is collected."""
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self.clock.advance(STEP_S)
        self.take(run(self.prefill.step()))
        self.take(run(self.decode.step()))
        self.transfer()

    def take(self, events: list) -> None:
        for event in events:
            self.events.append(event)
            journey = self.journeys.get(event.work_id)
            if isinstance(event, Started):
                self._ready[event.work_id] = {}
                if journey is not None:
                    journey.cached_tokens.append(event.cached_tokens)
                    self.decode.admit(journey.work)
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

    def forget(self, work_id: str) -> None:
        """The transfer ends on both sides, as when its stream breaks."""
        self.prefill.cancel(work_id)
        self.decode.cancel(work_id)
        self.decode.reader_stopped(work_id)
        for table in (self._ready, self._handoffs, self._reserved):
            table.pop(work_id, None)

    def transfer(self) -> None:
        """Read everything whose source and destination are both complete, check tags, and tell both sides."""
        for work_id, handoff in [*self._handoffs.items()]:
            if work_id not in self._reserved or self.hold(work_id):
                continue
            reserved, ready = self._reserved.pop(work_id), self._ready.pop(work_id)
            del self._handoffs[work_id]
            assert sorted(ready) == list(range(len(reserved.blocks)))
            wanted = [ready[i] for i in range(reserved.cached_blocks, len(reserved.blocks))]
            source, here = self.prefill_runner.pool, list(reserved.blocks[reserved.cached_blocks :])
            self.decode_runner.pool.copy_from(source, [block.block for block in wanted], here)
            for block, place in zip(wanted, here, strict=True):
                full = bool(block.chain_hash)
                (content,) = self.decode_runner.pool.content_hashes([place], full=full, has_mtp=True)
                assert tag(content, block.chain_hash, 5) == block.tag
            self.prefill.release_lease(work_id)
            self.decode.landed(work_id, handoff)

    def check_idle(self) -> None:
        self.prefill.check_idle()
        self.decode.check_idle()

    @staticmethod
    def _token(journey: Journey, token: GeneratedToken) -> None:
        assert token.position == journey.work.prompt_tokens + len(journey.tokens)
        journey.tokens.append(token)


MakePair = Callable[..., Pair]
