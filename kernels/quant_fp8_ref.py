"""Activation quantisation and what is fused with it, reference. FP8 e4m3, one scale per token and 128 channels.

`x` may be partial sums [splits, tokens, H] (fp32) of a matrix product that split K; they are added first.
"""

from torch import Tensor

from kernels import fp8_block_ref
from kernels.rms_norm_ref import rms_norm


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` [tokens, K]: (e4m3 [tokens, K], fp32 scale [tokens, ceil(K/128)])."""
    return fp8_block_ref.quantize_per_token(x)


def rms_norm_quant(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm in weight's type, then quantise: (e4m3, scale)."""
    row = x.float().sum(0).to(weight.dtype) if x.dim() == 3 else x
    return quantize_per_token(rms_norm(row, weight, eps))


def add_rms_norm_quant(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add in fp32, RMSNorm, quantise: (x + residual in residual's type, normed in weight's, e4m3, scale)."""
    row = x.float().sum(0) if x.dim() == 3 else x.float()
    total = (row + residual.float()).to(residual.dtype)
    normed = rms_norm(total, weight, eps)
    return total, normed, *quantize_per_token(normed)
