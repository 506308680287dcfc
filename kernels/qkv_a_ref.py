"""Input norm, quantisation and the first attention projection as one product, reference.

RMSNorm multiplies a row by one number, and quantisation does not see it: `x * norm_weight` is quantised per 128, and
the product's rows are multiplied by `1 / rms(x)` afterwards. This rounds less often than norm, cast
and quantise in turn.
"""

import torch
from torch import Tensor

from kernels.fp8_block_ref import dequantize_block, dequantize_per_token, quantize_per_token


def qkv_a(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    w: Tensor,
    w_scale: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """`x` [M, K], norm_weight [K], w e4m3 [N, K] with block scales: [M, N] in `out_dtype`."""
    q, scale = quantize_per_token(x.float() * norm_weight.float())
    inverse = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (dequantize_per_token(q, scale) @ dequantize_block(w, w_scale).T * inverse).to(out_dtype)


def qkv_a_partial(x: Tensor, norm_weight: Tensor, eps: float, w: Tensor, w_scale: Tensor) -> tuple[Tensor, Tensor]:
    """The product without `1 / rms` fp32 [1, M, N], and the sum of squares fp32 [1, M]."""
    q, scale = quantize_per_token(x.float() * norm_weight.float())
    sums = dequantize_per_token(q, scale) @ dequantize_block(w, w_scale).T
    return sums[None], x.float().square().sum(-1)[None]
