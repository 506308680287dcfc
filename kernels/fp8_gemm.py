"""FP8 matrix product with block scales: the fastest of ours and DeepGEMM, by measured tables."""

import torch
from torch import Tensor

from kernels.fp8_gemm_ahead import AheadTile, fp8_gemm_ahead
from kernels.fp8_gemm_deepgemm import fp8_gemm_deepgemm
from kernels.fp8_gemm_splitk import fp8_gemm_splitk

Table = dict[tuple[int, int], tuple[tuple[int, AheadTile | None], ...]]

# (N, K): tiles of `fp8_gemm_ahead` by the most rows they are for; DeepGEMM has the rest, and those with None.
TILES: Table = {
    (2112, 7168): (  # q_a and kv_a
        (16, AheadTile(16, groups=2, splits=4, stages=14, along="k", registers=64, ahead=6)),
        (32, AheadTile(32, groups=2, splits=4, stages=14, along="k", registers=64, ahead=4)),
        (64, AheadTile(64, splits=4, stages=8, registers=80, ahead=4, share=True)),
    ),
    (24576, 1536): (  # q_b
        (16, AheadTile(16, stages=6, registers=80, ahead=3)),
        (32, AheadTile(32, stages=6, registers=80, ahead=3)),
        (64, AheadTile(64, groups=3, stages=7, ahead=3)),
        (128, AheadTile(128, groups=3, stages=5, run=1, ahead=2)),
    ),
    (7168, 16384): (  # o_proj
        (16, AheadTile(16, groups=2, splits=2, stages=11, share=True, run=4)),
        (32, AheadTile(32, groups=2, splits=2, stages=10, share=True, run=4)),
        (64, None),  # as fast as ours alone, faster in a layer
        (128, AheadTile(128, groups=2, along="tokens", splits=2, stages=6, registers=120, share=True, run=1)),
    ),
    (4096, 7168): (  # gate and up of one expert
        (16, AheadTile(16, splits=2, stages=8, registers=64)),
        (32, AheadTile(32, splits=2, stages=16, registers=80)),
        (128, AheadTile(128, splits=2, stages=8, registers=120)),
    ),
    (7168, 2048): (  # down of one expert
        (16, AheadTile(16, stages=8, registers=64)),
        (32, AheadTile(32, stages=16, registers=80)),
        (128, AheadTile(128, stages=8, registers=120)),
    ),
}
# Where the next kernel adds the parts, more rows are worth splitting.
PARTIAL_TILES: Table = {
    (2112, 7168): (
        (16, AheadTile(16, groups=2, splits=4, stages=14, along="k", registers=64, ahead=4)),
        (32, AheadTile(32, groups=2, splits=4, stages=14, along="k", registers=64, ahead=4)),
        (64, AheadTile(64, splits=4, stages=8, registers=80, ahead=4)),
        (128, AheadTile(128, splits=4, stages=8, registers=120, ahead=3)),
    ),
    (7168, 16384): (
        (16, AheadTile(16, groups=2, splits=4, stages=5, registers=80)),
        (32, AheadTile(32, splits=2, stages=8, registers=80)),
    ),
}
SPLITK_ROWS = 32  # to here other shapes take the split-K kernel


def fp8_gemm(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, *, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Multiply quantised activations by a block-scaled weight.

    Programs of some tiles wait for each other (`AheadTile.share`): two such products must not run at once on one GPU.

    Args:
        x: e4m3 [M, K]; x_scale: fp32 [M, ceil(K/128)] in `tiles.scale_buffer`'s layout.
        w: e4m3 [N, K]; w_scale: fp32 [ceil(N/128), ceil(K/128)].

    Returns:
        `out_dtype` [M, N].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: the table says DeepGEMM and it is not installed.
    """
    tile = pick_tile(TILES, x, w)
    if tile:
        return fp8_gemm_ahead(x, x_scale, w, w_scale, tile, out_dtype=out_dtype)
    if x.shape[0] <= SPLITK_ROWS:
        return fp8_gemm_splitk(x, x_scale, w, w_scale, out_dtype=out_dtype)
    return fp8_gemm_deepgemm(x, x_scale, w, w_scale, out_dtype=out_dtype)


def fp8_gemm_partial(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """`fp8_gemm` for a next kernel that adds: fp32 [parts, M, N], or bf16 [M, N] where that is faster."""
    tile = pick_tile(PARTIAL_TILES, x, w)
    if tile:
        return fp8_gemm_ahead(x, x_scale, w, w_scale, tile, reduce=False)
    if x.shape[0] <= SPLITK_ROWS:
        return fp8_gemm_splitk(x, x_scale, w, w_scale, reduce=False)
    return fp8_gemm(x, x_scale, w, w_scale)


def pick_tile(table: Table, x: Tensor, w: Tensor) -> AheadTile | None:
    """The table's tile for these operands; none in Triton's CPU interpreter, which has no Gluon."""
    if x.device.type != "cuda":
        return None
    known = table.get((w.shape[0], w.shape[1]), ())
    return next((tile for most, tile in known if x.shape[0] <= most), None)
