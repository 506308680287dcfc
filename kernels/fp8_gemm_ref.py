"""FP8 matrix product with block scales, reference."""

import torch
from torch import Tensor

from kernels.fp8_block_ref import dequantize_block, dequantize_per_token


def fp8_gemm(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, *, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """`x` e4m3 [M, K] with scale [M, ceil(K/128)] by `w` e4m3 [N, K] with block scales: [M, N], fp32 sums."""
    return (dequantize_per_token(x, x_scale) @ dequantize_block(w, w_scale).T).to(out_dtype)
