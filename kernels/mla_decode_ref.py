"""Absorbed multi-head latent attention over paged latent, reference (DeepSeek-V2 report, section 2.1.2).

All heads read one latent per token: keys are its `R + P` values, values its first `R`. The softmax is in
fp32.
"""

import torch
from torch import Tensor


def mla_decode(
    q_nope: Tensor,
    q_pe: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    query_lens: Tensor,
    total_lens: Tensor,
    sm_scale: float,
) -> Tensor:
    """Attend each request's last `query_lens[b]` tokens to its `total_lens[b]` cached ones, causally among themselves.

    Args:
        q_nope: [tokens, heads, R], absorbed through `k_b`; requests follow each other, none padded.
        q_pe: [tokens, heads, P], rotated.
        cache: [blocks, block_tokens, R + P], one layer's view of the pool (any block stride); the queries' own latent
            is already in it.
        block_tables: int32 [requests, max_blocks]; entries past a request's length are never read.
        query_lens, total_lens: int32 [requests]; total counts cached and query tokens. A request may have no query.

    Returns:
        [tokens, heads, R] in q_nope's type, before `v_b`.
    """
    rank = q_nope.shape[-1]
    wide = torch.float64 if q_nope.dtype == torch.float64 else torch.float32
    out = torch.empty_like(q_nope)
    start = 0
    for table, query_len, total_len in zip(
        block_tables.tolist(), query_lens.tolist(), total_lens.tolist(), strict=True
    ):
        if query_len == 0:
            continue
        rows = slice(start, start + query_len)
        start += query_len
        latent = [part.to(wide) for part in _latent_parts(cache, table, total_len)]
        q = torch.cat((q_nope[rows], q_pe[rows]), dim=-1).to(wide).flatten(0, 1)
        # [parts][blocks, rows * heads, block_tokens] -> [rows, heads, total]
        scores = torch.cat([(q @ part.transpose(1, 2)).transpose(0, 1).flatten(1) for part in latent], dim=1)
        scores = scores.view(query_len, -1, total_len) * sm_scale
        if query_len > 1:
            last = torch.arange(total_len - query_len, total_len, device=q.device)
            future = torch.arange(total_len, device=q.device)[None] > last[:, None]
            scores = scores.masked_fill(future[:, None], float("-inf"))
        weights = torch.split(scores.softmax(-1).flatten(0, 1), [p.shape[0] * p.shape[1] for p in latent], dim=1)
        mixed = [
            (w.view(len(w), *part.shape[:2]).transpose(0, 1) @ part[..., :rank]).sum(0)
            for w, part in zip(weights, latent, strict=True)
        ]
        out[rows] = sum(mixed[1:], mixed[0]).view_as(q_nope[rows]).to(out.dtype)
    return out


def _latent_parts(cache: Tensor, table: list[int], total_len: int) -> list[Tensor]:
    """Views [blocks, block_tokens, R + P] of a request's latent, one per run of neighbouring blocks, last the odd end.

    On a CPU gathering costs several times the attention itself, and blocks of one request mostly are neighbours.
    """
    block_tokens = cache.shape[1]
    full, rest = divmod(total_len, block_tokens)
    parts, first = [], 0
    for i in range(1, full + 1):
        if i == full or table[i] != table[i - 1] + 1:
            parts.append(cache[table[first] : table[first] + i - first])
            first = i
    if rest:
        parts.append(cache[table[full] : table[full] + 1, :rest])
    return parts
