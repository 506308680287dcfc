"""Input RMSNorm, FP8 quantisation and the fused q_a / kv_a projection in one launch, K split over programs.

Each program quantises its share of K as it streams its weights, and sums the squares of the same share; the last of a
tile's splits to arrive adds partial products and squares in order and applies `1 / rms`. Batch-invariant: splits depend
on the weight's shape alone.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check
from kernels.arrival import arrival_counters
from kernels.pdl import begin, launch_options
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import BLOCK_K, Tile


@triton.jit(do_not_specialize=["M"])
def _qkv_a(
    x_desc, norm_ptr, w_desc, ws_ptr, out_ptr, part_ptr, squares_ptr, arrived_ptr, eps, M, N, K, stride_wsn,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    REDUCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile_n, split, tile_m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n0, m0 = tile_n * COLUMNS, tile_m * ROWS
    k_blocks = tl.cdiv(K, 128)
    lane = tl.arange(0, 128)
    ws_row = ws_ptr + (n0 // 128) * stride_wsn
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    first = split * k_blocks // SPLITS
    last = (split + 1) * k_blocks // SPLITS
    begin(PDL)
    for kb in tl.range(first, last, num_stages=STAGES):
        w = w_desc.load([n0, kb * 128])
        x = x_desc.load([m0, kb * 128]).to(tl.float32)
        norm = tl.load(norm_ptr + kb * 128 + lane, mask=kb * 128 + lane < K, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
        q, scale = quantize_groups(x * norm[None, :])
        acc += tl.dot(w, q.to(w.dtype).T) * (scale * tl.load(ws_row + kb))[None, :]
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = m0 + rows < M
    keep = live[:, None] & (n0 + columns < N)[None, :]
    offset = rows[:, None] * N + columns[None, :]
    start = m0.to(tl.int64) * N + n0
    size = M.to(tl.int64) * N
    tl.store(part_ptr + start + split * size + offset, tl.trans(acc), mask=keep)
    tl.store(squares_ptr + split * M + m0 + rows, squares, mask=live)
    if REDUCE:
        tl.debug_barrier()
        slot = arrived_ptr + tile_m * tl.num_programs(0) + tile_n
        if tl.atomic_add(slot, 1, sem="acq_rel") == SPLITS - 1:
            tl.debug_barrier()
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
            total_squares = tl.zeros((ROWS,), tl.float32)
            for s in range(SPLITS):
                total += tl.load(part_ptr + start + s * size + offset, mask=keep, other=0.0, cache_modifier=".cg")
                ahead = squares_ptr + s * M + m0 + rows
                total_squares += tl.load(ahead, mask=live, other=0.0, cache_modifier=".cg")
            total *= tl.rsqrt(total_squares / K + eps)[:, None]
            tl.store(out_ptr + start + offset, total.to(out_ptr.dtype.element_ty), mask=keep)
            tl.store(slot, 0)


# The most rows a tile is for. Many splits make a program's chain of load, quantise and multiply short; who adds them in
# the same launch can afford fewer.
PARTIAL_TILES: tuple[tuple[int, Tile], ...] = (
    (16, Tile(16, 128, splits=28, stages=2, warps=8)),
    (1 << 30, Tile(32, 64, splits=8, stages=2)),
)
TILES: tuple[tuple[int, Tile], ...] = (
    (16, Tile(16, 64, splits=8, stages=3)),
    (1 << 30, Tile(32, 64, splits=8, stages=3)),
)


def pick_tile(rows: int, inner: int, *, partial: bool) -> Tile:
    """The measured tile; no more splits than there are steps of K."""
    tile = next(tile for limit, tile in (PARTIAL_TILES if partial else TILES) if rows <= limit)
    return replace(tile, splits=min(tile.splits, -(-inner // BLOCK_K)))


def qkv_a(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    w: Tensor,
    w_scale: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    tile: Tile | None = None,
) -> Tensor:
    """Project the normed hidden state.

    Args:
        x: bf16 [M, K], the residual stream; norm_weight: bf16 [K].
        w: e4m3 [N, K] (q_a and kv_a one after the other); w_scale: fp32 [ceil(N/128), ceil(K/128)].

    Returns:
        `out_dtype` [M, N].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    return _launch(x, norm_weight, eps, w, w_scale, out_dtype, tile)[0]


def qkv_a_partial(
    x: Tensor, norm_weight: Tensor, eps: float, w: Tensor, w_scale: Tensor, *, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """`qkv_a` for a next kernel that adds (`latent.split_qkv_a`).

    Returns:
        sums fp32 [splits, M, N] of the product without `1 / rms`, and squares fp32 [splits, M] of x, to be summed too.
    """
    _, sums, squares = _launch(x, norm_weight, eps, w, w_scale, None, tile)
    return sums, squares


def _launch(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    w: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype | None,
    tile: Tile | None,
) -> tuple[Tensor, Tensor, Tensor]:
    reduce = out_dtype is not None
    check.shape("x", x, (None, None))
    check.dtype("x", x, torch.bfloat16, torch.float32)
    check.contiguous("x", x)
    rows, inner = x.shape
    check.shape("norm_weight", norm_weight, (inner,))
    check.shape("w", w, (None, inner))
    columns = w.shape[0]
    check.shape("w_scale", w_scale, (-(-columns // 128), -(-inner // BLOCK_K)))
    check.dtype("w", w, check.FP8)
    check.dtype("w_scale", w_scale, torch.float32)
    check.contiguous("w", w)
    check.contiguous("norm_weight", norm_weight)
    check.dense_rows("w_scale", w_scale)
    for name, tensor in (("norm_weight", norm_weight), ("w", w), ("w_scale", w_scale)):
        check.same_device(name, tensor, x)
    check.multiple("x.shape[1]", inner, 16)
    tile = tile or pick_tile(rows, inner, partial=not reduce)
    sums = x.new_empty((tile.splits, rows, columns), dtype=torch.float32)
    squares = x.new_empty((tile.splits, rows), dtype=torch.float32)
    out = x.new_empty((rows, columns), dtype=out_dtype) if reduce else sums
    if rows == 0:
        return out, sums, squares
    grid = (triton.cdiv(columns, tile.columns), tile.splits, triton.cdiv(rows, tile.rows))
    _qkv_a[grid](
        TensorDescriptor(x, [rows, inner], [inner, 1], [tile.rows, BLOCK_K]),
        norm_weight,
        TensorDescriptor(w, [columns, inner], [inner, 1], [tile.columns, BLOCK_K]),
        w_scale,
        out,
        sums,
        squares,
        arrival_counters(grid[0] * grid[2], x.device) if reduce else sums,
        eps,
        rows,
        columns,
        inner,
        w_scale.stride(0),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        REDUCE=reduce,
        num_warps=tile.warps,
        **launch_options(x.device),
    )
    return out, sums, squares
