"""Absorbed MLA decode for a few tokens: keys split over programs, 64 heads each, partial results merged.

A program takes 64 heads of one token and an equal share of its pages; the merge is one short launch that starts while
the first drains. It needs no library and runs in the CPU interpreter. Measured equal to the libraries at one request,
behind them from two on: `mla_decode` stays with them. Not batch-invariant: splits depend on the number of tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.latent import check_cache
from kernels.pdl import begin, launch_options
from kernels.tiles import pow2_at_least, sm_count

HEADS = 64
MOST_TOKENS = 8
LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    q_ptr, cache_ptr, tables_ptr, totals_ptr, part_ptr, lse_ptr,
    scale, tokens, query_len, stride_table, stride_block, stride_token, H,
    R: tl.constexpr, P: tl.constexpr, BLOCK_TOKENS: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    split = tl.program_id(2)
    request = token // query_len
    limit = tl.load(totals_ptr + request) - query_len + 1 + token % query_len
    pages = (limit + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    rank = tl.arange(0, R)
    rope = tl.arange(0, P)
    slot = tl.arange(0, BLOCK_TOKENS)
    live = (head < H)[:, None]
    row = q_ptr + (token.to(tl.int64) * H + head)[:, None] * (R + P)
    q = tl.load(row + rank[None, :], mask=live, other=0.0)
    q_pe = tl.load(row + R + rope[None, :], mask=live, other=0.0)
    top = tl.full((HEADS,), -1e30, tl.float32)
    mass = tl.zeros((HEADS,), tl.float32)
    acc = tl.zeros((HEADS, R), tl.float32)
    for page in tl.range(split * pages // SPLITS, (split + 1) * pages // SPLITS, num_stages=STAGES):
        block = tl.load(tables_ptr + request * stride_table + page).to(tl.int64)
        source = cache_ptr + block * stride_block + slot[:, None] * stride_token
        inside = page * BLOCK_TOKENS + slot < limit
        # What is past the limit may be anything, and 0 * NaN is NaN: it is not loaded.
        k = tl.load(source + rank[None, :], mask=inside[:, None], other=0.0)
        k_pe = tl.load(source + R + rope[None, :], mask=inside[:, None], other=0.0)
        s = tl.dot(q_pe, k_pe.T, tl.dot(q, k.T, input_precision="ieee"), input_precision="ieee") * scale
        s = tl.where(inside[None, :], s, -1e30)
        new_top = tl.maximum(top, tl.max(s, axis=1))
        shrink = tl.exp2(top - new_top)
        p = tl.exp2(s - new_top[:, None])
        mass = mass * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(k.dtype), k, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    place = (split * tokens + token).to(tl.int64) * H + head
    whole = tl.where(mass > 0, mass, 1.0)
    tl.store(part_ptr + place[:, None] * R + rank[None, :], acc / whole[:, None], mask=live)
    tl.store(lse_ptr + place, tl.where(mass > 0, top + tl.log2(whole), -1e30), mask=head < H)


@triton.jit
def _merge(
    part_ptr, lse_ptr, out_ptr, rows,
    R: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, SPLIT_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.arange(0, SPLIT_BLOCK)
    lse = tl.load(lse_ptr + split * rows + row, mask=split < SPLITS, other=-1e30)
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    weight = tl.where(split < SPLITS, weight / tl.sum(weight, axis=0), 0.0)
    at = (split.to(tl.int64) * rows + row)[:, None] * R + column[None, :]
    part = tl.load(part_ptr + at, mask=(split < SPLITS)[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], axis=0)
    tl.store(out_ptr + row * R + column, out.to(out_ptr.dtype.element_ty))


def mla_decode_split(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    total_lens: Tensor,
    sm_scale: float,
    *,
    query_len: int = 1,
    splits: int | None = None,
) -> Tensor:
    """Attend few tokens, causally among a request's queries.

    Args:
        q: [requests * query_len, heads, R + P], absorbed and rotated; R and P powers of two.
        cache: [blocks, block_tokens, R + P], any block stride, in q's type; block_tokens a power of two.
        block_tables: int32 [requests, max_blocks]; total_lens: int32 [requests], cached and query tokens, at least 1.
        splits: programs that share a token's pages; by default enough to fill the chip.

    Returns:
        [requests * query_len, heads, R] in q's type.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_cache(cache)
    check.shape("q", q, (None, None, cache.shape[2]))
    check.dtype("q", q, cache.dtype)
    check.contiguous("q", q)
    tokens, heads, width = q.shape
    rank = pow2_at_least(width) // 2
    check.multiple("cache.shape[1]", cache.shape[1], pow2_at_least(cache.shape[1]))
    check.multiple("cache.shape[2] - R", width - rank, pow2_at_least(width - rank))
    requests, max_blocks = block_tables.shape
    check.shape("q", q, (requests * query_len, None, None))
    check.dtype("block_tables", block_tables, torch.int32)
    check.dense_rows("block_tables", block_tables)
    check.shape("total_lens", total_lens, (requests,))
    check.dtype("total_lens", total_lens, torch.int32)
    for name, tensor in (("cache", cache), ("block_tables", block_tables), ("total_lens", total_lens)):
        check.same_device(name, tensor, q)
    out = q.new_empty((tokens, heads, rank))
    if tokens == 0:
        return out
    head_tiles = triton.cdiv(heads, HEADS)
    splits = splits or max(1, min(triton.cdiv(max_blocks, 2), sm_count(q.device) // (tokens * head_tiles), 64))
    parts = q.new_empty((splits, tokens, heads, rank), dtype=torch.float32)
    lse = q.new_empty((splits, tokens, heads), dtype=torch.float32)
    _attend[(tokens, head_tiles, splits)](
        q, cache, block_tables, total_lens, parts, lse,
        sm_scale * LOG2_E, tokens, query_len, block_tables.stride(0), cache.stride(0), cache.stride(1), heads,
        R=rank, P=width - rank, BLOCK_TOKENS=cache.shape[1], HEADS=HEADS, SPLITS=splits, STAGES=2,
        num_warps=8, **launch_options(q.device),
    )  # fmt: skip
    columns = min(256, rank)
    _merge[(tokens * heads, rank // columns)](
        parts, lse, out, tokens * heads,
        R=rank, COLUMNS=columns, SPLITS=splits, SPLIT_BLOCK=pow2_at_least(splits), num_warps=4,
        **launch_options(q.device),
    )  # fmt: skip
    return out
