"""From logits to tokens: penalties, bias and masks, the draw itself, log-probabilities."""

from dataclasses import dataclass

import torch

from common.engine.draw_rule import DrawRule
from common.request import PositionLogprobs
from kernels.sample_ref import sample


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One row of logits. `ahead` are the drafts between the rule's last token and `position`."""

    rule: DrawRule
    position: int
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """
    Attributes:
        token_ids: ``[rows]`` int64; 0 where nothing could be drawn.
        possible: by row, False where no finite logit was left, which only a broken model or mask causes.
        logprobs: by row, None where not asked for.
    """

    token_ids: torch.Tensor
    possible: tuple[bool, ...]
    logprobs: tuple[PositionLogprobs | None, ...]


class Sampler:
    """
    Args:
        undrawable: ``[vocab]`` bool, ids that stand for no token; None when all do.
    """

    def __init__(self, undrawable: torch.Tensor | None = None) -> None:
        self._undrawable = undrawable

    def draw(self, logits: torch.Tensor, rows: list[DrawRow], *, logprobs: bool = True) -> Drawn:
        """Draw one token per row of ``[rows, vocab]`` fp32, each by its logits, rule and position alone."""
        if not rows:
            return Drawn(torch.zeros(0, dtype=torch.int64, device=logits.device), (), ())
        altered = logits
        if self._undrawable is not None:
            altered = altered.masked_fill(self._undrawable, float("-inf"))
        changed = [i for i, row in enumerate(rows) if row.rule.alters(row.position)]
        if changed:
            altered = altered.clone() if altered is logits else altered
            for i in changed:
                altered[i] = rows[i].rule.alter(altered[i], rows[i].position, rows[i].ahead)
        best = altered.amax(-1)
        possible = torch.isfinite(best)
        altered = torch.where(possible[:, None], altered, 0.0)
        token_ids = sample(altered, *_parameters(rows, logits.device))
        token_ids = torch.where(possible, token_ids, 0)
        return Drawn(
            token_ids,
            tuple(possible.tolist()),
            _logprobs(logits, token_ids, rows) if logprobs else (None,) * len(rows),
        )


def _parameters(rows: list[DrawRow], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Temperature, top_k, top_p, min_p, seed and position of each row."""
    sampling = [row.rule.sampling for row in rows]
    floats = torch.tensor([(s.temperature, s.top_p, s.min_p) for s in sampling], dtype=torch.float32, device=device)
    whole = torch.tensor(
        [(s.top_k, s.seed, row.position) for s, row in zip(sampling, rows, strict=True)],
        dtype=torch.int64,
        device=device,
    )
    return floats[:, 0], whole[:, 0], floats[:, 1], floats[:, 2], whole[:, 1], whole[:, 2]


def _logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, rows: list[DrawRow]
) -> tuple[PositionLogprobs | None, ...]:
    """Of the model's own distribution, before temperature and whatever else changes it."""
    asked = [i for i, row in enumerate(rows) if row.rule.top_logprobs is not None]
    out: list[PositionLogprobs | None] = [None] * len(rows)
    if not asked:
        return tuple(out)
    logprobs = logits[asked].float().log_softmax(-1)
    chosen = logprobs.gather(1, token_ids[asked][:, None])[:, 0].tolist()
    for place, i in enumerate(asked):
        count = min(rows[i].rule.top_logprobs or 0, int(logits.shape[1]))
        values, ids = logprobs[place].topk(count)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        out[i] = PositionLogprobs(chosen=chosen[place], top=top)
    return tuple(out)
