"""FP8 e4m3 with one fp32 scale per block, reference (DeepSeek-V3 report, section 3.3.2).

Weights carry a scale per 128 x 128 block (`weight_scale_inv`: multiply by it), activations one per token and 128
channels. A scale is `amax / 448`; a block of zeros has scale 1e-10 / 448, so that nothing divides by zero. Edge blocks
may be partial.
"""

import torch
from torch import Tensor

BLOCK = 128
FP8_MAX = 448.0
AMAX_FLOOR = 1e-10


def dequantize_block(w: Tensor, scale: Tensor) -> Tensor:
    """`w` [N, K] e4m3 times its block's entry of `scale` [ceil(N/128), ceil(K/128)]: float32 [N, K]."""
    rows, columns = w.shape
    full = scale.float().repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return w.float() * full


def quantize_block(w: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise `w` [N, K] by 128 x 128 blocks: (e4m3 [N, K], fp32 scale [ceil(N/128), ceil(K/128)])."""
    rows, columns = w.shape
    blocks_n, blocks_k = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = w.new_zeros((blocks_n * BLOCK, blocks_k * BLOCK), dtype=torch.float32)
    padded[:rows, :columns] = w
    tiles = padded.view(blocks_n, BLOCK, blocks_k, BLOCK)
    amax = tiles.abs().amax(dim=(1, 3)).clamp_min(AMAX_FLOOR)
    most = torch.full_like(amax, FP8_MAX)  # a tensor: torch multiplies by the reciprocal of a scalar
    q = (tiles * (most / amax)[:, None, :, None]).to(torch.float8_e4m3fn)
    return q.view(blocks_n * BLOCK, blocks_k * BLOCK)[:rows, :columns].contiguous(), amax / most


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise `x` [tokens, K] by 128 channels: (e4m3 [tokens, K], fp32 scale [tokens, ceil(K/128)])."""
    tokens, columns = x.shape
    blocks = -(-columns // BLOCK)
    padded = x.new_zeros((tokens, blocks * BLOCK), dtype=torch.float32)
    padded[:, :columns] = x
    tiles = padded.view(tokens, blocks, BLOCK)
    amax = tiles.abs().amax(dim=-1).clamp_min(AMAX_FLOOR)
    most = torch.full_like(amax, FP8_MAX)
    q = (tiles * (most / amax)[..., None]).to(torch.float8_e4m3fn)
    return q.view(tokens, blocks * BLOCK)[:, :columns].contiguous(), amax / most


def dequantize_per_token(q: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `quantize_per_token`: float32 [tokens, K]."""
    return q.float() * scale.repeat_interleave(BLOCK, 1)[:, : q.shape[1]]
