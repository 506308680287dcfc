"""All ranks of an EP group over one checkpoint in this process, each instance with its cache and sequences."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from common.model.base import Model
from common.model.batch import AttentionForm, ForwardBatch, Schedule
from common.model.config import read_model_config
from common.model.load import load_model
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.groups import Topology, exchange, tensor_group
from common.parallel.in_process import InProcessTransport
from common.parallel.waits import Waits, run_together
from tests.fakes.mailboxes import undelivered

BLOCK_TOKENS = 16
BLOCKS = 96


@dataclass
class Span:
    """Tokens of a sequence that a step computes, from position `start` on, unless `positions` says otherwise."""

    sequence: str
    token_ids: Sequence[int]
    start: int = 0
    positions: Sequence[int] | None = None


@dataclass
class Instance:
    """Bookkeeping of one attention replica: blocks are handed out in a random order, as after some use."""

    free: list[int] = field(default_factory=lambda: random.Random(7).sample(range(BLOCKS), BLOCKS))
    tables: dict[str, list[int]] = field(default_factory=dict)

    def batch(self, spans: Sequence[Span]) -> ForwardBatch:
        slots: list[int] = []
        for span in spans:
            table = self.tables.setdefault(span.sequence, [])
            end = span.start + len(span.token_ids)
            while len(table) * BLOCK_TOKENS < end:
                table.append(self.free.pop())
            slots += [table[i // BLOCK_TOKENS] * BLOCK_TOKENS + i % BLOCK_TOKENS for i in range(span.start, end)]
        width = max((len(self.tables[s.sequence]) for s in spans), default=0)
        tables = [self.tables[s.sequence] + [0] * (width - len(self.tables[s.sequence])) for s in spans]
        default = [list(range(s.start, s.start + len(s.token_ids))) for s in spans]
        return ForwardBatch(
            token_ids=torch.tensor([t for s in spans for t in s.token_ids], dtype=torch.int64),
            positions=torch.tensor(
                [p for s, d in zip(spans, default, strict=True) for p in (s.positions or d)], dtype=torch.int64
            ),
            slots=torch.tensor(slots, dtype=torch.int64),
            query_tokens=torch.tensor([len(s.token_ids) for s in spans], dtype=torch.int32),
            total_tokens=torch.tensor([s.start + len(s.token_ids) for s in spans], dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32).view(len(spans), width),
        )


class RankGroup:
    """`world` ranks in instances of `tp`."""

    def __init__(
        self, directory: Path, *, world: int = 1, tp: int = 1, placement: ExpertPlacement | None = None
    ) -> None:
        self.tp = tp
        self.transports = InProcessTransport.group(world)
        self.models: list[Model] = []
        for rank, transport in enumerate(self.transports):
            topology = Topology(rank, world, tp)
            self.models.append(
                load_model(
                    directory,
                    topology=topology,
                    all_to_all=exchange(
                        transport, placement or ExpertPlacement.contiguous(experts_in(directory), world)
                    ),
                    tensor_group=tensor_group(topology, transport),
                )
            )
        self.instances = [Instance() for _ in range(world // tp)]
        shape = (BLOCKS, self.models[0].latent_layers, BLOCK_TOKENS, self.models[0].latent_width)
        self.caches = [torch.full(shape, torch.nan) for _ in range(world)]

    def hidden_states(
        self,
        work: Sequence[Sequence[Span]],
        *,
        form: AttentionForm = AttentionForm.MULTI_HEAD,
        schedule: Schedule = Schedule.NONE,
        announce: Sequence[int] | None = None,
    ) -> list[torch.Tensor]:
        """One step of all ranks over each instance's spans: ``[tokens, hidden]`` by instance."""
        batches = [instance.batch(spans) for instance, spans in zip(self.instances, work, strict=True)]
        return self._together(
            [
                model.hidden_states(
                    batches[rank // self.tp],
                    self.caches[rank],
                    form=form,
                    schedule=schedule,
                    announce=None if announce is None else announce[rank // self.tp],
                )
                for rank, model in enumerate(self.models)
            ]
        )

    def mtp_hidden_states(
        self,
        work: Sequence[Sequence[Span]],
        previous: Sequence[torch.Tensor],
        *,
        form: AttentionForm = AttentionForm.MULTI_HEAD,
        schedule: Schedule = Schedule.NONE,
    ) -> list[torch.Tensor]:
        batches = [instance.batch(spans) for instance, spans in zip(self.instances, work, strict=True)]
        return self._together(
            [
                model.mtp_hidden_states(
                    batches[rank // self.tp],
                    self.caches[rank],
                    previous[rank // self.tp],
                    form=form,
                    schedule=schedule,
                )
                for rank, model in enumerate(self.models)
            ]
        )

    def logits(self, work: Sequence[Sequence[Span]], **options: object) -> list[torch.Tensor]:
        hidden = self.hidden_states(work, **options)  # type: ignore[arg-type]
        return [self.models[0].logits(h) for h in hidden]

    def _together(self, ranks: list[Waits[torch.Tensor]]) -> list[torch.Tensor]:
        results = run_together(ranks)
        assert undelivered(self.transports[0]) == 0
        for rank, result in enumerate(results):
            torch.testing.assert_close(result, results[rank - rank % self.tp], rtol=0, atol=0)
        return results[:: self.tp]


def experts_in(directory: Path) -> int:
    return read_model_config(directory).gate.experts


def prompt(tokens: int, seed: int = 0) -> list[int]:
    return random.Random(f"{seed} {tokens}").choices(range(2, 512), k=tokens)
