"""Sampling by the Gumbel maximum, reference: the token at a position is a function of (logits, seed, position) alone.

`argmax over kept tokens of logit / temperature + gumbel(seed, position, id)` draws from the softmax over the kept
tokens. Kept are, in this order: the `top_k` highest logits; of those, the likeliest until their probability
reaches `top_p`;
and those at least `min_p` times as likely as the best. Equal logits are kept or dropped together. Every row is treated
alone, so a request's draw is the same in any batch.
"""

import torch
from torch import Tensor

from kernels.philox_ref import gumbel, token_bits

NEG_INF = float("-inf")


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row.

    Args:
        logits: fp32 [requests, vocab]; -inf marks tokens that a grammar forbids.
        temperature: fp32 [requests]; 0 takes the highest logit, the lowest id among equals.
        top_k: int [requests], 0 for all; top_p: fp32, 1 for all; min_p: fp32, 0 for all.
        seeds, positions: int64 [requests].

    Returns:
        ids int64 [requests].
    """
    greedy = temperature <= 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    scaled = _keep_top(scaled, top_k, top_p, rows=(~greedy & ((top_k > 0) | (top_p < 1))))
    floor = scaled.amax(-1) + torch.log(min_p)  # log(0) = -inf keeps all
    scaled = scaled.masked_fill(scaled < floor[:, None], NEG_INF)
    drawn = ~greedy
    if bool(drawn.any()):
        scaled[drawn] += gumbel(token_bits(seeds[drawn], positions[drawn], logits.shape[1]))
    return _first_argmax(torch.where(greedy[:, None], logits.float(), scaled))


def _keep_top(scaled: Tensor, top_k: Tensor, top_p: Tensor, rows: Tensor) -> Tensor:
    """Set what top_k and top_p drop to -inf; only `rows` are sorted."""
    chosen = rows.nonzero().squeeze(1)
    if chosen.numel() == 0:
        return scaled.clone()
    part, vocab = scaled[chosen], scaled.shape[1]
    k = torch.where(top_k[chosen] > 0, top_k[chosen], vocab).clamp_max(vocab).long()
    p = top_p[chosen].float()
    ordered = part.sort(dim=-1, descending=True).values
    kth = ordered.gather(1, (k - 1)[:, None])
    ordered = ordered.masked_fill(ordered < kth, NEG_INF)
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass  # what strictly better tokens hold, for the first of equals
    # The last value whose better ones hold less than top_p; equals share its fate through the comparison of values.
    inside = ((before < p[:, None]) | (p[:, None] >= 1)) & (ordered > NEG_INF)
    last = (inside.sum(-1) - 1).clamp_min(0)
    least = torch.maximum(ordered.gather(1, last[:, None]), kth)
    out = scaled.clone()
    out[chosen] = part.masked_fill(part < least, NEG_INF)
    return out


def _first_argmax(values: Tensor) -> Tensor:
    """Index of the maximum, the lowest among equals (torch leaves that open)."""
    ids = torch.arange(values.shape[1], device=values.device)
    return torch.where(values == values.amax(-1, keepdim=True), ids, values.shape[1]).amin(-1)
