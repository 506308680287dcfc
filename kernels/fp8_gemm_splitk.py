"""FP8 matrix product for few rows, K split over programs: `out = (x * x_scale) @ (w * w_scale)^T`.

With few rows the product is as fast as its weights arrive, so the weight tile is the left operand of wgmma (64 features
and more) and the tokens are the right one (16 and more): no padding of rows to 64. K is split so that every
multiprocessor streams; partial sums are fp32 and are added in a fixed order by the last program to arrive, or left to
the next kernel. The order of additions depends on (N, K) alone, so a row's result does not depend on its batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check
from kernels.arrival import arrival_counters
from kernels.pdl import begin, launch_options
from kernels.tiles import BLOCK_K, Tile, pow2_at_least

MANY = 1 << 30


@triton.jit
def column_scale(ws, next_block, COLUMNS: tl.constexpr):
    """The weight scale of each of a tile's columns [COLUMNS or 1, 1]: one block of 128, or two."""
    first = tl.load(ws)
    if COLUMNS > 128:
        scale = tl.where(tl.arange(0, COLUMNS) < 128, first, tl.load(ws + next_block))[:, None]
    else:
        scale = first
    return scale


@triton.jit
def store_split(
    acc, out_ptr, part_ptr, arrived_ptr, M, N, m0, n0, split,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, REDUCE: tl.constexpr,
):  # fmt: skip
    """Store one program's sums [ROWS, COLUMNS]; the last of a tile's splits to arrive adds them in order of K."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    keep = (m0 + rows < M)[:, None] & (n0 + columns < N)[None, :]
    offset = rows[:, None] * N + columns[None, :]
    start = m0.to(tl.int64) * N + n0
    if SPLITS == 1:
        tl.store(out_ptr + start + offset, acc.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        size = M.to(tl.int64) * N
        tl.store(part_ptr + start + split * size + offset, acc, mask=keep)
        if REDUCE:
            tl.debug_barrier()
            slot = arrived_ptr + (m0 // ROWS) * tl.cdiv(N, COLUMNS) + n0 // COLUMNS
            if tl.atomic_add(slot, 1, sem="acq_rel") == SPLITS - 1:
                tl.debug_barrier()
                total = tl.zeros((ROWS, COLUMNS), tl.float32)
                for s in range(SPLITS):
                    part = part_ptr + start + s * size
                    total += tl.load(part + offset, mask=keep, other=0.0, cache_modifier=".cg")
                tl.store(out_ptr + start + offset, total.to(out_ptr.dtype.element_ty), mask=keep)
                tl.store(slot, 0)


@triton.jit(do_not_specialize=["M"])
def _splitk(
    x_desc,
    xs_desc,
    xs_ptr,
    w_desc,
    ws_ptr,
    out_ptr,
    part_ptr,
    arrived_ptr,
    M,
    N,
    K,
    stride_xs,
    stride_wsn,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    REDUCE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    tile_n, split, tile_m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n0, m0 = tile_n * COLUMNS, tile_m * ROWS
    k_blocks = tl.cdiv(K, 128)
    first = split * k_blocks // SPLITS
    last = (split + 1) * k_blocks // SPLITS
    m = m0 + tl.arange(0, ROWS)
    next_block = tl.where(n0 + 128 < N, stride_wsn, 0)
    ws_row = ws_ptr + (n0 // 128) * stride_wsn
    begin(PDL)
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for kb in tl.range(first, last, num_stages=STAGES):
        if ROWS >= 32:
            scale = tl.reshape(xs_desc.load([kb, m0]), (ROWS,))
        else:
            # TMA writes to multiples of 128 bytes of shared memory only, 32 scales.
            scale = tl.load(xs_ptr + kb * stride_xs + m, mask=m < M, other=0.0)
        w = w_desc.load([n0, kb * 128])
        x = x_desc.load([m0, kb * 128])
        acc += tl.dot(w, x.T) * (scale[None, :] * column_scale(ws_row + kb, next_block, COLUMNS))
    store_split(
        tl.trans(acc), out_ptr, part_ptr, arrived_ptr, M, N, m0, n0, split, ROWS, COLUMNS, SPLITS, REDUCE
    )  # fmt: skip


# (N, K): tiles by the most rows they are for. Splits are one number a shape: results do not depend on the batch.
TILES: dict[tuple[int, int], tuple[tuple[int, Tile], ...]] = {
    (2112, 7168): (  # q_a and kv_a
        (16, Tile(16, 64, splits=4)),
        (32, Tile(32, 64, splits=4)),
        (MANY, Tile(64, 64, splits=4)),
    ),
    (24576, 1536): (  # q_b
        (16, Tile(16, 128)),
        (32, Tile(32, 64, stages=3)),
        (64, Tile(64, 64)),
        (MANY, Tile(64, 128, stages=3)),
    ),
    (4096, 7168): (  # shared expert, beside the router: half of the multiprocessors' memory stays free
        (16, Tile(16, 128, splits=4)),
        (32, Tile(32, 128, splits=4)),
        (MANY, Tile(64, 128, splits=4)),
    ),
    (7168, 2048): (
        (16, Tile(16, 128, splits=2)),
        (32, Tile(32, 128, splits=2)),
        (MANY, Tile(64, 128, splits=2)),
    ),
    (7168, 16384): (  # o_proj
        (16, Tile(16, 128, splits=2, stages=6)),
        (32, Tile(32, 128, splits=2, stages=6)),
        (MANY, Tile(64, 128, splits=2, stages=6)),
    ),
}


def pick_tile(rows: int, columns: int, inner: int) -> Tile:
    """The measured tile for [rows, inner] x [columns, inner]^T; other shapes get enough splits to fill the chip."""
    known = TILES.get((columns, inner))
    if known:
        return next(tile for limit, tile in known if rows <= limit)
    splits = max(1, min(264 // -(-columns // 128), -(-inner // BLOCK_K) // 4))
    return Tile(min(64, pow2_at_least(rows, 16)), 128, splits)


def fp8_gemm_splitk(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    reduce: bool = True,
    tile: Tile | None = None,
) -> Tensor:
    """Multiply quantised activations by a block-scaled weight.

    Args:
        x: e4m3 [M, K]; x_scale: fp32 [M, ceil(K/128)], laid out by `tiles.scale_buffer`.
        w: e4m3 [N, K]; w_scale: fp32 [ceil(N/128), ceil(K/128)].
        reduce: False returns the partial sums, fp32 [splits, M, N], for a kernel that adds them as it reads.
        tile: overrides the table.

    Returns:
        `out_dtype` [M, N], or the partial sums.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_operands(x, x_scale, w, w_scale)
    (rows, inner), columns = x.shape, w.shape[0]
    tile = tile or pick_tile(rows, columns, inner)
    splits = tile.splits
    direct = splits == 1 and reduce
    out = x.new_empty((rows, columns), dtype=out_dtype if reduce else torch.float32)
    parts = out[None] if splits == 1 else x.new_empty((splits, rows, columns), dtype=torch.float32)
    if rows == 0:
        return out if reduce else parts
    grid = (triton.cdiv(columns, tile.columns), splits, triton.cdiv(rows, tile.rows))
    arrived = out if direct or not reduce else arrival_counters(grid[0] * grid[2], x.device)
    _splitk[grid](
        TensorDescriptor(x, [rows, inner], [inner, 1], [tile.rows, BLOCK_K]),
        scale_descriptor(x_scale, tile.rows),
        x_scale,
        TensorDescriptor(w, [columns, inner], [inner, 1], [tile.columns, BLOCK_K]),
        w_scale,
        out,
        parts,
        arrived,
        rows,
        columns,
        inner,
        x_scale.stride(1),
        w_scale.stride(0),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        SPLITS=splits,
        REDUCE=reduce,
        STAGES=tile.stages,
        num_warps=tile.warps,
        **launch_options(x.device),
    )
    return out if reduce else parts


def check_operands(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> None:
    """What every FP8 product asks of its operands."""
    check.shape("x", x, (None, None))
    rows, inner = x.shape
    check.shape("w", w, (None, inner))
    blocks = -(-inner // BLOCK_K)
    check.shape("x_scale", x_scale, (rows, blocks))
    check.shape("w_scale", w_scale, (-(-w.shape[0] // 128), blocks))
    for name, tensor in (("x", x), ("w", w)):
        check.dtype(name, tensor, check.FP8)
        check.contiguous(name, tensor)
    for name, tensor in (("x_scale", x_scale), ("w_scale", w_scale)):
        check.dtype(name, tensor, torch.float32)
    check.column_major("x_scale", x_scale)
    for name, tensor in (("x_scale", x_scale), ("w", w), ("w_scale", w_scale)):
        check.same_device(name, tensor, x)
    check.dense_rows("w_scale", w_scale)
    check.multiple("x.shape[1]", inner, 16)


def scale_descriptor(x_scale: Tensor, rows: int) -> TensorDescriptor:
    """TMA view [k blocks, tokens] of column-major activation scales, one k block of `rows` tokens a load."""
    tokens, blocks = x_scale.shape
    return TensorDescriptor(x_scale.T, [blocks, tokens], [x_scale.stride(1), 1], [1, rows])
