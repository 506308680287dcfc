"""Multi-head attention of a prefill (keys 192 wide, values 128 for V3), reference.

New tokens attend causally; latent cached earlier is gathered and up-projected by the caller into more keys and values,
either in front of the new ones (`causal` aligns the ends) or chunk by chunk with `causal=False`, whose partial results
`merge_states` joins by their log-sum-exp.
"""

import torch
from torch import Tensor

# Queries whose scores are computed together: bounds the memory for scores; keys past a tile's last query are left out.
_TILE_QUERIES = 128


def mla_prefill(
    q: Tensor, k: Tensor, v: Tensor, query_lens: Tensor, key_lens: Tensor, sm_scale: float, *, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Attend ragged requests, one after the other without padding.

    Args:
        q: [query tokens, heads, D]; k: [key tokens, heads, D]; v: [key tokens, heads, V].
        query_lens, key_lens: int32 [requests]; either may be 0.
        causal: query i of a request sees keys up to `key_len - query_len + i`; otherwise all of them.

    Returns:
        out [query tokens, heads, V] in q's type, lse fp32 [query tokens, heads]: the log2 of the sum of exp of scaled
        scores (as FlashInfer's). A query that sees no key gives zeros and -inf.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32, device=q.device)
    q_start = k_start = 0
    for query_len, key_len in zip(query_lens.tolist(), key_lens.tolist(), strict=True):
        rows, columns = slice(q_start, q_start + query_len), slice(k_start, k_start + key_len)
        q_start, k_start = rows.stop, columns.stop
        if query_len == 0 or key_len == 0:
            continue
        keys, values = k[columns].to(wide).permute(1, 2, 0), v[columns].to(wide).transpose(0, 1)
        for tile in range(0, query_len, _TILE_QUERIES):
            end = min(tile + _TILE_QUERIES, query_len)
            seen = min(key_len - query_len + end, key_len) if causal else key_len
            if seen <= 0:
                continue
            here = slice(rows.start + tile, rows.start + end)
            scores = (q[here].to(wide).transpose(0, 1) @ keys[..., :seen]).mul_(sm_scale)
            if causal:
                last = torch.arange(key_len - query_len + tile, key_len - query_len + end, device=q.device)
                scores.masked_fill_(torch.arange(seen, device=q.device)[None] > last[:, None], float("-inf"))
            top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(wide).min)
            weights = scores.sub_(top).exp_()
            total = weights.sum(-1, keepdim=True)
            mixed = (weights @ values[:, :seen]) / total.clamp_min(torch.finfo(wide).tiny)
            out[here] = mixed.transpose(0, 1).to(q.dtype)
            natural = torch.where(total > 0, total.log() + top, float("-inf")).squeeze(-1)
            lse[here] = (natural.T * 1.4426950408889634).float()
    return out, lse


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Join two partial attentions over disjoint keys: out [tokens, heads, V], lse base 2 [tokens, heads] as above."""
    top = torch.maximum(lse_a, lse_b)
    finite = torch.where(top == float("-inf"), 0.0, top)
    a, b = torch.exp2(lse_a - finite), torch.exp2(lse_b - finite)
    total = a + b
    safe = torch.where(total == 0, 1.0, total)
    out = out_a.float() * (a / safe)[..., None] + out_b.float() * (b / safe)[..., None]
    return out.to(out_a.dtype), torch.log2(total) + finite
