"""Sorting (token, slot) pairs by expert on the device, moving rows there, and the weighted way back.

`sort_pairs` is one launch: every program takes one expert, counts how many pairs go to lower ones and numbers its own
pairs in order (of many pairs a part, after counting those before it), so there is nothing to wait for and no atomic:
the order depends on the ids alone. Experts' rows begin at multiples of `align`. `permute` copies rows there,
`unpermute` gathers them back and adds slot after slot in fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import begin, launch_options
from kernels.permute_ref import sorted_rows
from kernels.tiles import pow2_at_least, scale_buffer

PAIRS = 2048  # pairs a program looks at per step, four times as many where there are more than LARGE_PAIRS
LARGE_PAIRS = 1 << 15
LARGE_PARTS = 4  # programs that share an expert's pairs where there are more than LARGE_PAIRS
GATHERED = 4  # rows a program of `gather_rows` copies


@triton.jit(do_not_specialize=["pairs"])
def _sort_pairs(
    ids_ptr, rows_ptr, sources_ptr, counts_ptr, pairs, top_k,
    E: tl.constexpr, ALIGN: tl.constexpr, E_BLOCK: tl.constexpr, PAIRS: tl.constexpr,
    COUNTED: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One expert's pairs in one part of all pairs; a part counts the expert's pairs in the parts before it."""
    begin(PDL)
    expert = tl.program_id(0)
    part = tl.program_id(1)
    lane = tl.arange(0, PAIRS)
    if COUNTED:
        column = tl.arange(0, E_BLOCK)
        known = tl.load(counts_ptr + column, mask=column < expert, other=0)
        below = tl.sum((known + ALIGN - 1) // ALIGN * ALIGN, axis=0)
    elif ALIGN == 1:
        below = 0
        for start in range(0, pairs, PAIRS):
            ids = tl.load(ids_ptr + start + lane, mask=start + lane < pairs, other=-1)
            below += tl.sum(((ids >= 0) & (ids < expert)).to(tl.int32), axis=0)
    else:
        # Aligned starts need the count of every lower expert; ids of other ranks fall in the last bin.
        counts = tl.zeros((E_BLOCK,), tl.int32)
        for start in range(0, pairs, PAIRS):
            ids = tl.load(ids_ptr + start + lane, mask=start + lane < pairs, other=-1)
            counts += tl.histogram(tl.where((ids >= 0) & (ids < E), ids, E_BLOCK - 1).to(tl.int32), E_BLOCK)
        padded = (counts + ALIGN - 1) // ALIGN * ALIGN
        below = tl.sum(tl.where(tl.arange(0, E_BLOCK) < expert, padded, 0), axis=0)
    found = 0
    chunks = tl.cdiv(pairs, PAIRS)
    first = part * chunks // PARTS
    if PARTS > 1:
        for chunk in range(first):
            ids = tl.load(ids_ptr + chunk * PAIRS + lane)
            found += tl.sum((ids == expert).to(tl.int32), axis=0)
    for chunk in range(first, (part + 1) * chunks // PARTS):
        pair = chunk * PAIRS + lane
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        mine = ids == expert
        row = below + found + tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(rows_ptr + pair, row, mask=mine)
        tl.store(sources_ptr + row, (pair // top_k).to(tl.int32), mask=mine)
        found += tl.sum(mine.to(tl.int32), axis=0)
        if expert == 0:
            tl.store(rows_ptr + pair, -1, mask=(pair < pairs) & ((ids < 0) | (ids >= E)))
    if not COUNTED:
        tl.store(counts_ptr + expert, found, mask=part == PARTS - 1)


@triton.jit
def _row_experts(counts_ptr, out_ptr, total_rows, E: tl.constexpr, E_BLOCK: tl.constexpr, ALIGN: tl.constexpr,
                 BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    begin(PDL)
    expert = tl.arange(0, E_BLOCK)
    counts = tl.load(counts_ptr + expert, mask=expert < E, other=0)
    padded = (counts + ALIGN - 1) // ALIGN * ALIGN
    ends = tl.cumsum(padded, axis=0)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owner = tl.sum((ends[None, :] <= row[:, None]).to(tl.int32), axis=1)
    used = tl.sum(tl.where((owner[:, None] == expert[None, :]), (ends - padded + counts)[None, :], 0), axis=1)
    tl.store(out_ptr + row, tl.where(row < used, owner, -1), mask=row < total_rows)


@triton.jit
def _permute(x_ptr, rows_ptr, out_ptr, H, stride_x, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    for start in range(0, H, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + token * stride_x + at, mask=at < H)
        for j in tl.static_range(TOP_K):
            row = tl.load(rows_ptr + token * TOP_K + j).to(tl.int64)
            tl.store(out_ptr + row * H + at, value, mask=at < tl.where(row >= 0, H, 0))


@triton.jit
def _permute_scales(
    scale_ptr, sources_ptr, out_ptr, tokens, rows, blocks, stride_token, stride_block, stride_out,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.load(sources_ptr + row, mask=row < rows, other=0)
    token = tl.minimum(tl.maximum(source, 0), tokens - 1).to(tl.int64)  # rows of no expert have no source
    block = tl.arange(0, BLOCKS).to(tl.int64)[:, None]
    keep = (row < rows)[None, :] & (block < blocks)
    value = tl.load(scale_ptr + token[None, :] * stride_token + block * stride_block, mask=keep)
    tl.store(out_ptr + row[None, :] + block * stride_out, value, mask=keep)


@triton.jit
def _gather_rows(
    x_ptr, scale_ptr, sources_ptr, out_ptr, out_scale_ptr, tokens, rows, K, blocks,
    stride_x, stride_token, stride_block, stride_out, ROWS: tl.constexpr, K_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (row < rows)[:, None]
    source = tl.load(sources_ptr + row, mask=row < rows, other=0)
    token = tl.minimum(tl.maximum(source, 0), tokens - 1).to(tl.int64)[:, None]  # rows of no expert have no source
    at = tl.arange(0, K_BLOCK)[None, :]
    block = tl.arange(0, BLOCKS)[None, :]
    value = tl.load(x_ptr + token * stride_x + at, mask=live & (at < K))
    scale = tl.load(scale_ptr + token * stride_token + block * stride_block, mask=live & (block < blocks))
    tl.store(out_ptr + row.to(tl.int64)[:, None] * K + at, value, mask=live & (at < K))
    tl.store(out_scale_ptr + row[:, None] + block * stride_out, scale, mask=live & (block < blocks))


@triton.jit
def _unpermute(
    y_ptr, rows_ptr, weights_ptr, extra_ptr, more_ptr, out_ptr, H, stride_y, stride_extra, stride_more,
    TOP_K: tl.constexpr, EXTRA: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        row = tl.load(rows_ptr + token * TOP_K + j).to(tl.int64)
        weight = tl.load(weights_ptr + token * TOP_K + j)
        y = tl.load(y_ptr + row * stride_y + at, mask=at < tl.where(row >= 0, H, 0), other=0.0)
        total += tl.where(row >= 0, y.to(tl.float32) * weight, 0.0)
    if EXTRA:
        total += tl.load(extra_ptr + token * stride_extra + at, mask=at < H, other=0.0).to(tl.float32)
    if MORE:
        total += tl.load(more_ptr + token * stride_more + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * H + at, total.to(out_ptr.dtype.element_ty), mask=at < H)


def sort_pairs(
    ids: Tensor, num_experts: int, align: int = 1, counts: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give every (token, slot) pair of `ids` int [tokens, k] its row among the pairs sorted by expert.

    `counts` int32 [num_experts], where the router has counted already, saves one of two passes over the ids.

    Returns:
        rows int32 [tokens, k] (-1 for an id outside `0..num_experts-1`), sources int32 [sorted_rows(...)] (the token
        behind each row; rows of no expert are not written), counts int32 [num_experts].

    Raises:
        KernelArgumentError: wrong shape, type or stride.
    """
    check.shape("ids", ids, (None, None))
    check.dtype("ids", ids, torch.int32, torch.int64)
    check.contiguous("ids", ids)
    rows = ids.new_empty(ids.shape, dtype=torch.int32)
    sources = ids.new_empty(sorted_rows(ids.numel(), num_experts, align), dtype=torch.int32)
    if counts is not None:
        check.shape("counts", counts, (num_experts,))
        check.dtype("counts", counts, torch.int32)
        check.same_device("counts", counts, ids)
    total = ids.new_empty(num_experts, dtype=torch.int32) if counts is None else counts
    if ids.numel() == 0:
        return rows, sources, total.zero_()
    large = ids.numel() > LARGE_PAIRS
    parts = LARGE_PARTS if large else 1
    _sort_pairs[(num_experts, parts)](
        ids, rows, sources, total, ids.numel(), ids.shape[1],
        E=num_experts, ALIGN=align, E_BLOCK=pow2_at_least(num_experts + 1),
        PAIRS=min(4 * PAIRS if large else PAIRS, pow2_at_least(ids.numel(), 128)), COUNTED=counts is not None,
        PARTS=parts, num_warps=8 if large else 4, **launch_options(ids.device),
    )  # fmt: skip
    return rows, sources, total


def row_experts(counts: Tensor, total_rows: int, align: int) -> Tensor:
    """The expert of each sorted row, int32 [total_rows]; -1 between experts and after the last."""
    check.shape("counts", counts, (None,))
    check.dtype("counts", counts, torch.int32)
    out = counts.new_empty(total_rows)
    if total_rows:
        experts = counts.shape[0]
        _row_experts[(triton.cdiv(total_rows, 64),)](
            counts, out, total_rows, E=experts, E_BLOCK=pow2_at_least(experts + 1), ALIGN=align, BLOCK=64, num_warps=4,
            **launch_options(counts.device),
        )  # fmt: skip
    return out


def permute(x: Tensor, ids: Tensor, num_experts: int, align: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the pairs and copy each row of `x` [tokens, H] to its places; see `permute_ref.permute`.

    Returns:
        [sorted_rows(...), H] (rows of no expert are not written), counts, rows.
    """
    check.shape("x", x, (ids.shape[0], None))
    check.dense_rows("x", x)
    check.same_device("x", x, ids)
    rows, sources, counts = sort_pairs(ids, num_experts, align)
    return permute_rows(x, rows, sources.shape[0]), counts, rows


def permute_rows(x: Tensor, rows: Tensor, total_rows: int) -> Tensor:
    """Copy `x` [tokens, H] to the places `rows` int32 [tokens, k] of a new [total_rows, H]."""
    check.shape("rows", rows, (x.shape[0], None))
    out = x.new_empty((total_rows, x.shape[1]))
    if rows.numel() and x.shape[1]:
        block = min(4096, pow2_at_least(x.shape[1]))
        _permute[(x.shape[0],)](
            x, rows, out, x.shape[1], x.stride(0), TOP_K=rows.shape[1], BLOCK=block, num_warps=4,
            **launch_options(x.device),
        )  # fmt: skip
    return out


def permute_scales(scale: Tensor, sources: Tensor) -> Tensor:
    """Activation scales [tokens, blocks] of the sorted rows whose tokens are `sources` int32 [rows].

    Returns:
        fp32 [rows, blocks] in `tiles.scale_buffer`'s layout; rows of no expert hold any token's.
    """
    check.shape("sources", sources, (None,))
    check.dtype("sources", sources, torch.int32)
    check.same_device("sources", sources, scale)
    tokens, blocks = scale.shape
    rows = sources.shape[0]
    out = scale_buffer(rows, blocks, scale.device)
    if rows and tokens:
        _permute_scales[(triton.cdiv(rows, 64),)](
            scale, sources, out, tokens, rows, blocks, scale.stride(0), scale.stride(1), out.stride(1),
            BLOCKS=pow2_at_least(blocks), ROWS=64, num_warps=4, **launch_options(out.device),
        )  # fmt: skip
    return out


def gather_rows(x: Tensor, scale: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Copy quantised rows next to each other, and their scales, in one launch.

    Args:
        x: e4m3 [tokens, K]; scale: fp32 [tokens, blocks]; sources: int32 [rows], the token of each row.

    Returns:
        [rows, K], fp32 [rows, blocks] in `tiles.scale_buffer`'s layout; rows of no expert hold any token's.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("x", x, (None, None))
    check.dense_rows("x", x)
    check.shape("scale", scale, (x.shape[0], None))
    check.shape("sources", sources, (None,))
    check.dtype("sources", sources, torch.int32)
    for name, tensor in (("scale", scale), ("sources", sources)):
        check.same_device(name, tensor, x)
    tokens, blocks = scale.shape
    rows, inner = sources.shape[0], x.shape[1]
    out, out_scale = x.new_empty((rows, inner)), scale_buffer(rows, blocks, x.device)
    if rows and tokens:
        _gather_rows[(triton.cdiv(rows, GATHERED),)](
            x, scale, sources, out, out_scale, tokens, rows, inner, blocks, x.stride(0), scale.stride(0),
            scale.stride(1), out_scale.stride(1), ROWS=GATHERED, K_BLOCK=pow2_at_least(inner),
            BLOCKS=pow2_at_least(blocks), num_warps=4, **launch_options(x.device),
        )  # fmt: skip
    return out, out_scale


def unpermute(
    y: Tensor, rows: Tensor, weights: Tensor, extra: Tensor | None = None, more: Tensor | None = None
) -> Tensor:
    """Sum each token's expert outputs by weight, slot after slot, then `extra` and `more` (residual, shared expert).

    Args:
        y: [M, H]; rows: int32 [tokens, k]; weights: fp32 [tokens, k]; extra, more: [tokens, H] or None.

    Returns:
        [tokens, H] in y's type.
    """
    check.shape("y", y, (None, None))
    check.dense_rows("y", y)
    check.shape("rows", rows, (None, None))
    check.dtype("rows", rows, torch.int32)
    check.shape("weights", weights, tuple(rows.shape))
    check.dtype("weights", weights, torch.float32)
    check.contiguous("rows", rows)
    check.contiguous("weights", weights)
    tokens, hidden = rows.shape[0], y.shape[1]
    for name, added in (("extra", extra), ("more", more)):
        if added is not None:
            check.shape(name, added, (tokens, hidden))
            check.dense_rows(name, added)
            check.same_device(name, added, y)
    for name, tensor in (("rows", rows), ("weights", weights)):
        check.same_device(name, tensor, y)
    out = y.new_empty((tokens, hidden))
    if out.numel():
        block = min(1024, pow2_at_least(hidden))
        _unpermute[(tokens, triton.cdiv(hidden, block))](
            y, rows, weights, y if extra is None else extra, y if more is None else more, out, hidden, y.stride(0),
            0 if extra is None else extra.stride(0), 0 if more is None else more.stride(0), TOP_K=rows.shape[1],
            EXTRA=extra is not None, MORE=more is not None, BLOCK=block, num_warps=4, **launch_options(y.device),
        )  # fmt: skip
    return out
