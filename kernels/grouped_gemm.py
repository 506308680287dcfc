"""FP8 matrix product per expert, rows sorted by expert, row counts read on the device.

Decode gives an expert few rows, so the product is as fast as the experts' weights stream: the weight tile is the left
operand of wgmma and the rows are the right one (16 and more), loads go through TMA several k-steps ahead, and a fixed
number of programs walks the (expert, row tile, column tile) items that the counts imply. No shape depends on the
routing, so one captured launch serves all of them. `grouped_gate_up` also applies SwiGLU and quantises: it holds the
gate and up columns of one scale block together, and the intermediate never visits memory in bf16.
The items of a last, partial round of programs are split along K (`Tile.splits` ways at most) and added in order, so a
result is the same run after run, but the splits depend on how many rows the other experts have: not batch-invariant,
unless `splits` is 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check
from kernels.arrival import arrival_counters
from kernels.fp8_gemm_splitk import column_scale, scale_descriptor
from kernels.pdl import begin, launch_options
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import BLOCK_K, Tile, pow2_at_least, scale_buffer, sm_count


@triton.jit
def _join_pieces(acc, part_ptr, arrived_ptr, first, piece, split, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Leave a piece's sums and, as the last of `split` to arrive, add them all in order: (has the whole, sums)."""
    last = True
    if split > 1:
        flat = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        mine = part_ptr + first * (ROWS * COLUMNS)
        tl.store(mine + piece * (ROWS * COLUMNS) + flat, acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == split - 1
        if last:
            tl.debug_barrier()
            acc = tl.zeros((COLUMNS, ROWS), tl.float32)
            for p in range(split):
                acc += tl.load(mine + p * (ROWS * COLUMNS) + flat, cache_modifier=".cg")
            tl.store(arrived_ptr, 0)
    return last, acc


@triton.jit
def _grouped(
    x_ptr, x_desc, xs_ptr, xs_desc, sources_ptr, w_desc, ws_ptr, counts_ptr, out_ptr, out_scale_ptr, part_ptr,
    arrived_ptr, N, K, stride_xs, stride_ws_expert, stride_ws, stride_out_scale,
    E: tl.constexpr, E_BLOCK: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    GATHER: tl.constexpr, SWIGLU: tl.constexpr, STAGES: tl.constexpr,
    FLATTEN: tl.constexpr, TAIL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Without SWIGLU, N columns a tile of COLUMNS each; with it, N counts gate and up together."""
    begin(PDL)
    experts = tl.arange(0, E_BLOCK)
    counts = tl.load(counts_ptr + experts, mask=experts < E, other=0)
    tiles = (counts + ROWS - 1) // ROWS
    tile_ends = tl.cumsum(tiles, axis=0)
    width = N // 2 if SWIGLU else N
    column_tiles = tl.cdiv(width, COLUMNS)
    k_blocks = tl.cdiv(K, 128)
    lane = tl.arange(0, ROWS)
    total = tl.sum(tiles, axis=0) * column_tiles
    programs = tl.num_programs(0)
    # Items that do not fill a last round of programs are split along K, so that all programs share them.
    whole = total // programs * programs if TAIL > 1 else total
    pieces = tl.minimum(TAIL, programs // tl.maximum(total - whole, 1))
    for place in tl.range(tl.program_id(0), whole + (total - whole) * pieces, programs, flatten=FLATTEN):
        if TAIL > 1:
            over = tl.maximum(place - whole, 0)
            split = tl.where(place >= whole, pieces, 1)
            item = tl.where(place >= whole, whole + over // pieces, place)
            piece = tl.where(place >= whole, over % pieces, 0)
        else:
            item = place
            split = 1
            piece = 0
        tile = item // column_tiles
        n0 = (item % column_tiles) * COLUMNS
        expert = tl.sum((tile_ends <= tile).to(tl.int32), axis=0)
        before = experts < expert
        inside = (tile - tl.sum(tl.where(before, tiles, 0), axis=0)) * ROWS
        row0 = tl.sum(tl.where(before, (counts + ALIGN - 1) // ALIGN * ALIGN, 0), axis=0) + inside
        live = inside + lane < tl.sum(tl.where(experts == expert, counts, 0), axis=0)
        w_row = expert * N + n0
        ws_base = ws_ptr + expert.to(tl.int64) * stride_ws_expert
        ws_row = ws_base + (n0 // 128) * stride_ws
        next_block = tl.where(n0 + 128 < N, stride_ws, 0)
        ws_up = ws_base + ((n0 + width) // 128) * stride_ws
        acc = tl.zeros((COLUMNS, ROWS), tl.float32)
        acc_up = tl.zeros((COLUMNS, ROWS), tl.float32)
        if GATHER:
            source = tl.load(sources_ptr + row0 + lane, mask=live, other=0)
            x_ptrs = x_ptr + source.to(tl.int64)[:, None] * K + tl.arange(0, 128)[None, :]
        for kb in tl.range(piece * k_blocks // split, (piece + 1) * k_blocks // split, num_stages=STAGES):
            if GATHER:
                in_k = (kb * 128 + tl.arange(0, 128) < K)[None, :]
                x = tl.load(x_ptrs + kb * 128, mask=live[:, None] & in_k, other=0.0)
                scale = tl.load(xs_ptr + kb * stride_xs + source, mask=live, other=0.0)
            else:
                x = x_desc.load([row0, kb * 128])
                if ROWS >= 32:
                    scale = tl.reshape(xs_desc.load([kb, row0]), (ROWS,))
                else:
                    # TMA writes to multiples of 128 bytes of shared memory only, 32 scales.
                    scale = tl.load(xs_ptr + kb * stride_xs + row0 + lane, mask=live, other=0.0)
            gate = tl.dot(w_desc.load([w_row, kb * 128]), x.T)
            acc += gate * (scale[None, :] * column_scale(ws_row + kb, next_block, COLUMNS))
            if SWIGLU:
                up = tl.dot(w_desc.load([w_row + width, kb * 128]), x.T)
                acc_up += up * (scale * tl.load(ws_up + kb))[None, :]
        if SWIGLU:
            q, q_scale = quantize_groups(tl.trans(acc / (1.0 + tl.exp(-acc)) * acc_up))
            acc = tl.trans(q)
            to = out_scale_ptr + (n0 // 128).to(tl.int64) * stride_out_scale + row0 + lane
            tl.store(to, q_scale, mask=live)
        last = True
        if TAIL > 1:
            last, acc = _join_pieces(
                acc, part_ptr, arrived_ptr + item - whole, (item - whole) * pieces, piece, split, ROWS, COLUMNS
            )
        if last:
            keep = live[:, None] & (n0 + tl.arange(0, COLUMNS) < width)[None, :]
            start = row0.to(tl.int64) * width + n0
            offset = lane[:, None] * width + tl.arange(0, COLUMNS)[None, :]
            tl.store(out_ptr + start + offset, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=keep)


ROW_ALIGN = 4

MANY = float("inf")
# Tiles by the most rows the busiest expert can have: every token takes a shared expert, so that is their number.
TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 256, splits=8, warps=8)),
    (32, Tile(32, 128, programs_per_sm=2)),
    (MANY, Tile(64, 128, programs_per_sm=2)),
)
DOWN_TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 256, warps=8, flatten=True)),
    (32, Tile(32, 256, warps=8, flatten=True)),
    (MANY, Tile(64, 128, programs_per_sm=2)),
)
GATE_UP_TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 128, warps=8, flatten=True)),
    (32, Tile(32, 128, warps=8, flatten=True)),
    (MANY, Tile(64, 128, warps=8)),
)
SHORT_K = 4096  # up to here an item is short and the tiles of the down projection are ahead


def pick_tile(rows: int, inner: int, *, gate_up: bool = False) -> Tile:
    """The measured tile where no expert has many more than `rows`; larger experts take several tiles."""
    table = GATE_UP_TILES if gate_up else DOWN_TILES if inner <= SHORT_K else TILES
    return next(tile for limit, tile in table if rows <= limit)


def grouped_gemm(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None = None,
    *,
    align: int = ROW_ALIGN,
    expected_rows: int | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    tile: Tile | None = None,
) -> Tensor:
    """Multiply each expert's rows by its weight.

    Args:
        x: e4m3 [M, K], sorted by expert, or [tokens, K] with `sources`; x_scale: fp32 [.., ceil(K/128)] laid out by
            `tiles.scale_buffer`.
        w: e4m3 [experts, N, K]; w_scale: fp32 [experts, ceil(N/128), ceil(K/128)].
        counts: int32 [experts]: rows of each expert.
        align: each expert's rows begin at a multiple of it; 4 or more, so that TMA can load the scales.
        expected_rows: about what the busiest expert gets, for the choice of the tile; any value gives right results.
        sources: int32 [M], the row of `x` behind each sorted row; entries outside the experts' rows are not read.

    Returns:
        `out_dtype` [M, N]; rows outside the experts' are not written.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    rows = _check(x, x_scale, w, w_scale, counts, sources, align)
    out = x.new_empty((rows, w.shape[1]), dtype=out_dtype)
    _launch(
        x,
        x_scale,
        w,
        w_scale,
        counts,
        sources,
        out,
        None,
        align,
        tile or pick_tile(expected_rows or rows, w.shape[2]),
    )
    return out


def grouped_gate_up(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None = None,
    *,
    align: int = ROW_ALIGN,
    expected_rows: int | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """`grouped_gemm` by [gate; up] weights [experts, 2 I, K], then SwiGLU and quantisation, in one launch.

    Returns:
        e4m3 [M, I] and fp32 scale [M, I/128] in `tiles.scale_buffer`'s layout; I must be a multiple of 128.
    """
    rows = _check(x, x_scale, w, w_scale, counts, sources, align)
    check.multiple("w.shape[1]", w.shape[1], 256)
    inner = w.shape[1] // 2
    out = x.new_empty((rows, inner), dtype=check.FP8)
    scale = scale_buffer(rows, inner // 128, x.device)
    _launch(
        x,
        x_scale,
        w,
        w_scale,
        counts,
        sources,
        out,
        scale,
        align,
        tile or pick_tile(expected_rows or rows, w.shape[2], gate_up=True),
    )
    return out, scale


def _check(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, counts: Tensor, sources: Tensor | None, align: int
) -> int:
    check.multiple("align", align, 4)
    check.shape("x", x, (None, None))
    inner = x.shape[1]
    check.shape("w", w, (None, None, inner))
    experts, columns = w.shape[:2]
    blocks = -(-inner // BLOCK_K)
    check.shape("x_scale", x_scale, (x.shape[0], blocks))
    check.shape("w_scale", w_scale, (experts, -(-columns // 128), blocks))
    check.shape("counts", counts, (experts,))
    for name, tensor in (("x", x), ("w", w)):
        check.dtype(name, tensor, check.FP8)
        check.contiguous(name, tensor)
    for name, tensor in (("x_scale", x_scale), ("w_scale", w_scale)):
        check.dtype(name, tensor, torch.float32)
    check.dtype("counts", counts, torch.int32)
    check.column_major("x_scale", x_scale)
    check.dense_rows("w_scale", w_scale)
    for name, tensor in (("x_scale", x_scale), ("w", w), ("w_scale", w_scale), ("counts", counts)):
        check.same_device(name, tensor, x)
    check.multiple("x.shape[1]", inner, 16)
    if sources is None:
        return x.shape[0]
    check.shape("sources", sources, (None,))
    check.dtype("sources", sources, torch.int32)
    check.same_device("sources", sources, x)
    return sources.shape[0]


def _launch(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None,
    out: Tensor,
    out_scale: Tensor | None,
    align: int,
    tile: Tile,
) -> None:
    experts, columns, inner = w.shape
    if out.shape[0] == 0:
        return
    width = out.shape[1]
    most_tiles = min(out.shape[0], experts + out.shape[0] // tile.rows)
    programs = min(sm_count(x.device) * tile.programs_per_sm, most_tiles * triton.cdiv(width, tile.columns))
    tail = tile.splits if out_scale is None else 1
    _grouped[(programs,)](
        x,
        TensorDescriptor(x, [x.shape[0], inner], [inner, 1], [tile.rows, BLOCK_K]),
        x_scale,
        scale_descriptor(x_scale, tile.rows),
        counts if sources is None else sources,
        TensorDescriptor(w.view(-1, inner), [experts * columns, inner], [inner, 1], [tile.columns, BLOCK_K]),
        w_scale,
        counts,
        out,
        x_scale if out_scale is None else out_scale,
        x_scale if tail == 1 else x.new_empty(programs * tile.rows * tile.columns, dtype=torch.float32),
        counts if tail == 1 else arrival_counters(programs, x.device),
        columns,
        inner,
        x_scale.stride(1),
        w_scale.stride(0),
        w_scale.stride(1),
        0 if out_scale is None else out_scale.stride(1),
        E=experts,
        E_BLOCK=pow2_at_least(experts, 2),
        ALIGN=align,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        GATHER=sources is not None,
        SWIGLU=out_scale is not None,
        STAGES=tile.stages,
        FLATTEN=tile.flatten,
        TAIL=tail,
        num_warps=tile.warps,
        **launch_options(x.device),
    )
