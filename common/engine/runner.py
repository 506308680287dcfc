"""Executes one StepPlan on every tensor-parallel rank: forward, draws, MTP passes, drafts.

The leader (rank 0) draws and the others learn its draws, so ranks cannot part ways over a last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.engine.draw_rule import DrawRule
from common.engine.latent_pool import LatentPool
from common.engine.sampler import DrawRow, Sampler
from common.engine.speculation import accepted_drafts
from common.engine.step_plan import SequenceStep, Span, StepPlan, forward_batch
from common.errors import ConfigError, InternalError
from common.model.base import Model
from common.model.batch import ForwardBatch
from common.parallel.base import TensorGroup
from common.parallel.waits import Waits
from common.request import PositionLogprobs


@dataclass(frozen=True, slots=True)
class SequenceDraws:
    """What a step drew for one sequence.

    Attributes:
        token_ids: the tokens gained; empty in the middle of a prompt.
        accepted: how many of them had been drafted.
        possible: False when the model gave nothing that can be drawn; the tokens then mean nothing.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs | None, ...] = ()
    accepted: int = 0
    possible: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """By sequence of the plan. `announced` are all ranks' counts for the next step."""

    draws: tuple[SequenceDraws, ...]
    drafts: tuple[tuple[int, ...], ...]
    announced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A draft about to be drawn: for which sequence of the plan, from which row, for which position."""

    member: int
    row: int
    position: int


class Runner:
    """One rank's hands: the model and the memory, no decisions."""

    def __init__(self, model: Model, pool: LatentPool, group: TensorGroup, sampler: Sampler, draft_tokens: int) -> None:
        if draft_tokens and not model.has_mtp:
            raise ConfigError(f"draft_tokens = {draft_tokens}: the model has no MTP layer to draft with")
        self.model = model
        self.pool = pool
        self._group = group
        self._sampler = sampler

    @property
    def alone(self) -> bool:
        """No other rank takes part in this one's steps as far as tensor parallelism goes."""
        return self._group.ranks == 1

    @property
    def device(self) -> torch.device:
        return self.pool.tensor.device

    def lead(
        self,
        plan: StepPlan,
        rules: list[DrawRule],
        on_drawn: Callable[[tuple[SequenceDraws, ...]], None] = lambda draws: None,
    ) -> Waits[StepResult]:
        """Run the plan on all ranks of the instance.

        Args:
            rules: by sequence of the plan.
            on_drawn: called once the tokens are known, before drafts are computed.
        """
        yield from self._group.broadcast_object(plan)
        return (yield from self._run(plan, rules, on_drawn))

    def pause(self) -> Waits[None]:
        """In place of a step while there is none: keeps the other ranks of the instance waiting for the next."""
        yield from self._group.broadcast_object(None)

    def release_followers(self) -> Waits[None]:
        """No step will follow."""
        yield from self._group.broadcast_object(False)

    def follow(self) -> Waits[bool]:
        """A step of a rank that does not lead; False when the leader has ended."""
        yield  # as the leader's engine, which first waits for the other instances' decisions
        plan = yield from self._group.broadcast_object(None)
        if plan is False:
            return False
        if isinstance(plan, StepPlan):
            yield from self._run(plan, [], lambda draws: None)
        elif plan is not None:
            raise InternalError(f"the leader sent {type(plan).__name__} where a step plan was due")
        return True

    def _run(
        self, plan: StepPlan, rules: list[DrawRule], on_drawn: Callable[[tuple[SequenceDraws, ...]], None]
    ) -> Waits[StepResult]:
        sequences = plan.sequences
        yield from self._take_over(plan.landed_blocks)
        batch = self._batch([Span(s.token_ids, s.start, s.blocks) for s in sequences])
        hidden = yield from self.model.hidden_states(
            batch, self.pool.tensor, form=plan.form, schedule=plan.schedule, announce=plan.announce
        )
        announced = self.model.announced
        draws = yield from self._draw(sequences, rules, hidden)
        on_drawn(draws)
        drafts: tuple[tuple[int, ...], ...] = tuple(() for _ in sequences)
        if plan.draft_passes:
            drafts = yield from self._draft(plan, rules, hidden, draws)
        return StepResult(draws, drafts, announced)

    def _take_over(self, blocks: tuple[int, ...]) -> Waits[None]:
        if self._group.ranks == 1:
            return
        index = self._index(list(blocks))
        latent = yield from self._group.broadcast(self.pool.words[index])
        if self._group.rank:
            self.pool.words[index] = latent

    def _draw(
        self, sequences: tuple[SequenceStep, ...], rules: list[DrawRule], hidden: torch.Tensor
    ) -> Waits[tuple[SequenceDraws, ...]]:
        wanted: list[int] = []
        rows: list[DrawRow] = []
        end = 0
        for i, sequence in enumerate(sequences):
            end += len(sequence.token_ids)
            wanted.extend(range(end - sequence.draws, end))
            if rules:
                first = sequence.start + len(sequence.token_ids) - sequence.drafts
                ahead = sequence.token_ids[len(sequence.token_ids) - sequence.drafts :]
                rows.extend(DrawRow(rules[i], first + j, ahead[:j]) for j in range(sequence.draws))
        token_ids, possible, logprobs = yield from self._drawn(
            self.model.logits, hidden[self._index(wanted)], rows, logprobs=True
        )
        out: list[SequenceDraws] = []
        at = 0
        for sequence in sequences:
            part = slice(at, at + sequence.draws)
            at += sequence.draws
            if not sequence.draws:
                out.append(SequenceDraws())
                continue
            ahead = sequence.token_ids[len(sequence.token_ids) - sequence.drafts :]
            accepted = accepted_drafts(ahead, token_ids[part])
            gained = slice(part.start, part.start + accepted + 1)
            out.append(SequenceDraws(tuple(token_ids[gained]), logprobs[gained], accepted, all(possible[gained])))
        return tuple(out)

    def _draft(
        self, plan: StepPlan, rules: list[DrawRule], hidden: torch.Tensor, draws: tuple[SequenceDraws, ...]
    ) -> Waits[tuple[tuple[int, ...], ...]]:
        """The MTP passes: over the step's own positions, then one position further for every further draft."""
        spans: list[Span] = []
        rows: list[int] = []
        ends: list[int] = []
        at = kept_rows = 0
        for sequence, drawn in zip(plan.sequences, draws, strict=True):
            kept = len(sequence.token_ids) - sequence.drafts + drawn.accepted
            last = sequence.following if sequence.following is not None else drawn.token_ids[-1]
            spans.append(Span((*sequence.token_ids[1:kept], last), sequence.start, sequence.blocks))
            rows.extend(range(at, at + kept))
            at += len(sequence.token_ids)
            kept_rows += kept
            ends.append(kept_rows - 1)
        previous = hidden[self._index(rows)]
        drafts: list[tuple[int, ...]] = [()] * len(spans)
        members = list(range(len(spans)))  # of the plan, by span
        for _ in range(plan.draft_passes):
            out = yield from self.model.mtp_hidden_states(
                self._batch(spans), self.pool.tensor, previous, form=plan.form, schedule=plan.schedule
            )
            # At position p, given the token at p + 1, the layer proposes the one at p + 2.
            proposals = [
                _Proposal(i, end, span.start + len(span.token_ids) + 1)
                for i, end, span in zip(members, ends, spans, strict=True)
                if plan.sequences[i].draws
            ]
            proposals = [p for p in proposals if p.position < plan.sequences[p.member].propose_before]
            previous = out[self._index([p.row for p in proposals])]
            draw_rows = [
                DrawRow(rules[p.member], p.position, (*draws[p.member].token_ids, *drafts[p.member]))
                for p in (proposals if rules else [])
            ]
            token_ids, _, _ = yield from self._drawn(self.model.mtp_logits, previous, draw_rows, logprobs=False)
            for proposal, token_id in zip(proposals, token_ids, strict=True):
                drafts[proposal.member] = (*drafts[proposal.member], token_id)
            members = [p.member for p in proposals]
            spans = [Span((drafts[p.member][-1],), p.position - 1, plan.sequences[p.member].blocks) for p in proposals]
            ends = list(range(len(spans)))
        return tuple(drafts)

    def _drawn(
        self,
        head: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        rows: list[DrawRow],
        *,
        logprobs: bool,
    ) -> Waits[tuple[list[int], tuple[bool, ...], tuple[PositionLogprobs | None, ...]]]:
        """Draw from ``head(hidden)``, ``[rows, hidden]``, on the leader; all ranks learn the ids. Waits even without
        rows, for the number of a step's waits must not depend on its sequences.
        """
        count = int(hidden.shape[0])
        token_ids = torch.zeros(count, dtype=torch.int64, device=self.device)
        possible = (True,) * count
        values: tuple[PositionLogprobs | None, ...] = (None,) * count
        if self._group.rank == 0 and count:
            drawn = self._sampler.draw(head(hidden), rows, logprobs=logprobs)
            token_ids, possible, values = drawn.token_ids, drawn.possible, drawn.logprobs
        token_ids = yield from self._group.broadcast(token_ids)
        return token_ids.tolist(), possible, values

    def _batch(self, spans: list[Span]) -> ForwardBatch:
        return forward_batch(spans, self.pool.block_tokens, self.device)

    def _index(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.device)
