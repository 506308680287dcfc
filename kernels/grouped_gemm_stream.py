"""FP8 matrix product per expert, rows sorted by expert, row counts read on the device.

Decode gives an expert few rows, so the product is as fast as the experts' weights stream: the weight tile is the left
operand of wgmma and the rows are the right one (16 and more), loads go through TMA several k-steps ahead, and a fixed
number of programs walks the (expert, row tile, column tile) items that the counts imply. No shape depends on the
routing, so one captured launch serves all of them. `grouped_gate_up` also applies SwiGLU and quantises: it holds the
gate and up columns of one scale block together, and the intermediate never visits memory in bf16.
The items of a last, partial round of programs are split along K (`Tile.splits` ways at most) and added in order, so a
result is the same run after run, but the splits depend on how many rows the other experts have: not batch-invariant,
unless `splits` is 1. Otherwise steps of two scale blocks (`Tile.unroll`) read 256 bytes of each weight row at once.
"""

import math

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
from kernels.tiles import BLOCK_K, Tile, padded_scale_buffer, pow2_at_least, scale_buffer, sm_count


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
    arrived_ptr, N, K, max_rows, stride_xs, stride_ws_expert, stride_ws, stride_out_scale,
    E: tl.constexpr, E_BLOCK: tl.constexpr, ALIGN: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, GATHER: tl.constexpr, SWIGLU: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
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
        # The first row, and where its scales are: k block `xs_block`, column `xs_column`.
        if PADDED:
            row0 = expert * max_rows + inside
            xs_block = expert * k_blocks
            xs_column = inside
        else:
            row0 = tl.sum(tl.where(before, (counts + ALIGN - 1) // ALIGN * ALIGN, 0), axis=0) + inside
            xs_block = expert * 0
            xs_column = row0
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
        for first in tl.range(piece * k_blocks // split, (piece + 1) * k_blocks // split, UNROLL, num_stages=STAGES):
            # Neighbours along K lie in one page of memory: loaded together, they stream faster.
            for step in tl.static_range(UNROLL):
                kb = first + step
                if GATHER:
                    in_k = (kb * 128 + tl.arange(0, 128) < K)[None, :]
                    x = tl.load(x_ptrs + kb * 128, mask=live[:, None] & in_k, other=0.0)
                    scale = tl.load(xs_ptr + kb * stride_xs + source, mask=live, other=0.0)
                else:
                    x = x_desc.load([row0, kb * 128])
                    if ROWS >= 32:
                        scale = tl.reshape(xs_desc.load([xs_block + kb, xs_column]), (ROWS,))
                    else:
                        # TMA writes to multiples of 128 bytes of shared memory only, 32 scales.
                        at = (xs_block + kb) * stride_xs + xs_column + lane
                        scale = tl.load(xs_ptr + at, mask=live, other=0.0)
                gate = tl.dot(w_desc.load([w_row, kb * 128]), x.T)
                acc += gate * (scale[None, :] * column_scale(ws_row + kb, next_block, COLUMNS))
                if SWIGLU:
                    up = tl.dot(w_desc.load([w_row + width, kb * 128]), x.T)
                    acc_up += up * (scale * tl.load(ws_up + kb))[None, :]
        if SWIGLU:
            q, q_scale = quantize_groups(tl.trans(acc / (1.0 + tl.exp(-acc)) * acc_up))
            acc = tl.trans(q)
            block = n0 // 128
            if PADDED:
                block += expert * (width // 128)
            tl.store(out_scale_ptr + block.to(tl.int64) * stride_out_scale + xs_column + lane, q_scale, mask=live)
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
ITEM_EACH = 64  # programs a multiprocessor, more than there are items: each takes one as a place falls free
# Tiles by the most rows the busiest expert can have: every token takes a shared expert, so that is their number.
TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 128, stages=3, programs_per_sm=2, unroll=2)),
    (32, Tile(32, 128, programs_per_sm=ITEM_EACH)),
    (64, Tile(64, 128, flatten=True, unroll=2)),
    (MANY, Tile(64, 128, programs_per_sm=ITEM_EACH)),
)
DOWN_TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 128, stages=3, programs_per_sm=2, unroll=2)),
    (32, Tile(32, 256, warps=8, flatten=True)),
    (64, Tile(64, 128, flatten=True, unroll=2)),
    (MANY, Tile(64, 128, programs_per_sm=2, flatten=True)),
)
# Rows of so few that most experts have none: items are fewer than programs, and splitting them along K fills the chip.
FEW_ROWS = 64
FEW_TILES: tuple[tuple[float, Tile], ...] = ((16, Tile(16, 256, splits=8, warps=8)), *TILES[1:])
FEW_DOWN_TILES: tuple[tuple[float, Tile], ...] = ((16, Tile(16, 256, warps=8, flatten=True)), *DOWN_TILES[1:])
GATE_UP_TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 128, warps=8, flatten=True)),
    (32, Tile(32, 128, warps=8, flatten=True)),
    (MANY, Tile(64, 128, warps=8)),
)
SHORT_K = 4096  # up to here an item is short and the tiles of the down projection are ahead


def pick_tile(expected: int, inner: int, rows: int) -> Tile:
    """The measured tile where no expert has many more than `expected` of `rows`; larger experts take several tiles."""
    if inner <= SHORT_K:
        table = FEW_DOWN_TILES if rows <= FEW_ROWS else DOWN_TILES
    else:
        table = FEW_TILES if rows <= FEW_ROWS else TILES
    return _first(table, expected)


def _first(table: tuple[tuple[float, Tile], ...], expected: int) -> Tile:
    return next(tile for limit, tile in table if expected <= limit)


def grouped_gemm_stream(
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
    """`grouped_gemm.grouped_gemm` by this kernel.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    rows = check_operands(x, x_scale, w, w_scale, counts, sources, align)
    out = x.new_empty((*rows, w.shape[1]), dtype=out_dtype)
    tile = tile or pick_tile(expected_rows or rows[-1], w.shape[2], math.prod(rows))
    _launch(x, x_scale, w, w_scale, counts, sources, out, None, align, tile)
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
        e4m3 [.., I] and fp32 scale [.., I/128] where `grouped_gemm` reads them; I must be a multiple of 128.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    rows = check_operands(x, x_scale, w, w_scale, counts, sources, align)
    check.multiple("w.shape[1]", w.shape[1], 256)
    inner = w.shape[1] // 2
    out = x.new_empty((*rows, inner), dtype=check.FP8)
    if len(rows) == 1:
        scale = scale_buffer(rows[0], inner // 128, x.device)
    else:
        scale = padded_scale_buffer(rows[0], rows[1], inner // 128, x.device)
    tile = tile or _first(GATE_UP_TILES, expected_rows or rows[-1])
    _launch(x, x_scale, w, w_scale, counts, sources, out, scale, align, tile)
    return out, scale


def check_operands(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, counts: Tensor, sources: Tensor | None, align: int
) -> tuple[int, ...]:
    """The rows of the result, [M] or [experts, max_rows].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.multiple("align", align, 4)
    check.shape("w", w, (None, None, None))
    experts, columns, inner = w.shape
    blocks = -(-inner // BLOCK_K)
    if x.dim() == 3:
        check.shape("x", x, (experts, None, inner))
        check.transposed_rows("x_scale", x_scale)
    else:
        check.shape("x", x, (None, inner))
        check.column_major("x_scale", x_scale)
    check.shape("x_scale", x_scale, (*x.shape[:-1], blocks))
    check.shape("w_scale", w_scale, (experts, -(-columns // 128), blocks))
    check.shape("counts", counts, (experts,))
    for name, tensor in (("x", x), ("w", w)):
        check.dtype(name, tensor, check.FP8)
        check.contiguous(name, tensor)
    for name, tensor in (("x_scale", x_scale), ("w_scale", w_scale)):
        check.dtype(name, tensor, torch.float32)
    check.dtype("counts", counts, torch.int32)
    check.dense_rows("w_scale", w_scale)
    for name, tensor in (("x_scale", x_scale), ("w", w), ("w_scale", w_scale), ("counts", counts)):
        check.same_device(name, tensor, x)
    check.multiple("w.shape[2]", inner, 16)
    if sources is None:
        return tuple(x.shape[:-1])
    check.shape("x", x, (None, None))
    check.shape("sources", sources, (None,))
    check.dtype("sources", sources, torch.int32)
    check.same_device("sources", sources, x)
    return (sources.shape[0],)


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
    if out.numel() == 0:
        return
    padded = x.dim() == 3
    width, rows = out.shape[-1], out.shape[-2]
    most_tiles = experts * triton.cdiv(rows, tile.rows) if padded else min(rows, experts + rows // tile.rows)
    programs = min(sm_count(x.device) * tile.programs_per_sm, most_tiles * triton.cdiv(width, tile.columns))
    tail = tile.splits if out_scale is None else 1
    # A split or an odd number of k blocks would leave half of a last step.
    unroll = tile.unroll if tail == 1 and triton.cdiv(inner, BLOCK_K) % tile.unroll == 0 else 1
    # [experts, max_rows, blocks] in the padded form is [experts * blocks, max_rows] in memory.
    flat_scale = x_scale.transpose(1, 2).flatten(0, 1).T if padded else x_scale
    flat_x = x.view(-1, inner)
    _grouped[(programs,)](
        flat_x,
        TensorDescriptor(flat_x, [flat_x.shape[0], inner], [inner, 1], [tile.rows, BLOCK_K]),
        flat_scale,
        scale_descriptor(flat_scale, tile.rows),
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
        rows,
        flat_scale.stride(1),
        w_scale.stride(0),
        w_scale.stride(1),
        0 if out_scale is None else out_scale.stride(-1),
        E=experts,
        E_BLOCK=pow2_at_least(experts, 2),
        ALIGN=align,
        PADDED=padded,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        GATHER=sources is not None,
        SWIGLU=out_scale is not None,
        STAGES=tile.stages,
        UNROLL=unroll,
        FLATTEN=tile.flatten,
        TAIL=tail,
        num_warps=tile.warps,
        **launch_options(x.device),
    )
