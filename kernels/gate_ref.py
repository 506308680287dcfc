"""Expert choice, reference: group-limited top-k (DeepSeek-V3 report, eq. 13-16; V2 report, section 2.2.2).

V3 scores by sigmoid and chooses by score + bias: a group is worth the sum of its two best biased scores, experts
outside the kept groups count as -inf, weights come from the unbiased scores. Without a bias (V2's softmax
`group_limited_greedy`) a group is worth its best score. One group is plain top-k (V2-Lite, Mixtral). Equal scores go
to the lower id.
"""

from typing import Literal

import torch
from torch import Tensor

Scoring = Literal["sigmoid", "softmax"]


def gate(
    logits: Tensor,
    bias: Tensor | None,
    *,
    scoring: Scoring,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """Choose `top_k` experts per token.

    Args:
        logits: [tokens, experts], any float type; scored in fp32.
        bias: [experts] fp32 (`e_score_correction_bias`) or None.

    Returns:
        ids int64 [tokens, top_k], best first; weights fp32 [tokens, top_k].
    """
    wide = logits.float()
    scores = wide.sigmoid() if scoring == "sigmoid" else wide.softmax(-1)
    choice = scores if bias is None else scores + bias.float()
    tokens, experts = choice.shape
    if n_group > 1:
        grouped = choice.view(tokens, n_group, experts // n_group)
        worth = grouped.amax(-1) if bias is None else grouped.topk(2, dim=-1).values.sum(-1)
        kept = _best(worth, topk_group)
        dropped = torch.ones_like(worth, dtype=torch.bool).scatter_(1, kept, False)
        choice = grouped.masked_fill(dropped[..., None], float("-inf")).view(tokens, experts)
    ids = _best(choice, top_k)
    weights = scores.gather(1, ids)
    if norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * routed_scaling_factor


def project_gate(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *,
    scoring: Scoring,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
    shared: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`gate` behind its projection `x` [tokens, H] by `w` [experts, H] in fp32: ids int32, weights, counts int32.

    `shared` experts that every token takes with weight 1 follow the routed ones.
    """
    ids, weights = gate(
        x.float() @ w.float().T,
        bias,
        scoring=scoring,
        n_group=n_group,
        topk_group=topk_group,
        top_k=top_k,
        norm_topk_prob=norm_topk_prob,
        routed_scaling_factor=routed_scaling_factor,
    )
    experts = w.shape[0]
    always = torch.arange(experts, experts + shared, device=x.device).expand(x.shape[0], shared)
    ids = torch.cat((ids, always), dim=1)
    weights = torch.cat((weights, torch.ones_like(always, dtype=weights.dtype)), dim=1)
    counts = torch.bincount(ids.flatten(), minlength=experts + shared)
    return ids.to(torch.int32), weights, counts.to(torch.int32)


def _best(values: Tensor, k: int) -> Tensor:
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :k]
