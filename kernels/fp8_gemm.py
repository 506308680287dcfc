"""FP8 matrix product with block scales: the faster of our split-K kernel and DeepGEMM, by a measured table."""

import torch
from torch import Tensor

from kernels.fp8_gemm_deepgemm import fp8_gemm_deepgemm
from kernels.fp8_gemm_splitk import fp8_gemm_splitk

# (N, K): the most rows at which the split-K kernel is ahead. Other shapes take DEFAULT_ROWS.
SPLITK_ROWS: dict[tuple[int, int], int] = {(2112, 7168): 32, (24576, 1536): 128, (7168, 16384): 32}
DEFAULT_ROWS = 32
PARTIAL_ROWS = 32  # without the reduction the split-K kernel is ahead to here


def fp8_gemm(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, *, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Multiply quantised activations by a block-scaled weight.

    Args:
        x: e4m3 [M, K]; x_scale: fp32 [M, ceil(K/128)] in `tiles.scale_buffer`'s layout.
        w: e4m3 [N, K]; w_scale: fp32 [ceil(N/128), ceil(K/128)].

    Returns:
        `out_dtype` [M, N].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: the table says DeepGEMM and it is not installed.
    """
    if x.shape[0] <= SPLITK_ROWS.get((w.shape[0], w.shape[1]), DEFAULT_ROWS):
        return fp8_gemm_splitk(x, x_scale, w, w_scale, out_dtype=out_dtype)
    return fp8_gemm_deepgemm(x, x_scale, w, w_scale, out_dtype=out_dtype)


def fp8_gemm_partial(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """`fp8_gemm` for a next kernel that adds: fp32 [splits, M, N], or bf16 [M, N] where that is faster."""
    if x.shape[0] <= PARTIAL_ROWS:
        return fp8_gemm_splitk(x, x_scale, w, w_scale, reduce=False)
    return fp8_gemm(x, x_scale, w, w_scale)
