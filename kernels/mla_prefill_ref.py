"""Multi-head attention of a prefill (keys 192 wide, values 128 for V3), reference.

New tokens attend causally; latent cached earlier is gathered and up-projected by the caller into more keys and values,
either in front of the new ones (`causal` aligns the ends) or chunk by chunk with `causal=False`, whose partial results
`merge_states` joins by their log-sum-exp.
"""

import torch
from torch import Tensor


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
        scores = torch.einsum("qhd,khd->hqk", q[rows].to(wide), k[columns].to(wide)) * sm_scale
        if causal:
            last = torch.arange(key_len - query_len, key_len, device=q.device)
            scores.masked_fill_(torch.arange(key_len, device=q.device)[None] > last[:, None], float("-inf"))
        natural = scores.logsumexp(-1)
        weights = (scores - natural[..., None].clamp_min(torch.finfo(wide).min)).exp()
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v[columns].to(wide)).to(q.dtype)
        lse[rows] = (natural.T * 1.4426950408889634).float()
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
