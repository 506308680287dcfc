"""DeepSeek's weight format: e4m3 values with one fp32 `weight_scale_inv` per 128x128 block, edge blocks partial."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 128
E4M3_MAX = 448.0


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[rows, columns]` -> e4m3 of the same shape and fp32 scales `[ceil(rows/128), ceil(columns/128)]`."""
    rows, columns = weight.shape
    padded = pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = blocks.abs().amax(dim=(1, 3)).clamp_min(1e-12) / E4M3_MAX
    values = (blocks / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return values.flatten(2, 3).flatten(0, 1)[:rows, :columns].contiguous(), scale


def dequantize_blocks(values: Tensor, scale: Tensor) -> Tensor:
    """The fp32 weight `[rows, columns]` of e4m3 values and their block scales."""
    rows, columns = values.shape
    wide = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return values.float() * wide


def round_trip(weight: Tensor) -> Tensor:
    """The weight as it reads back from the checkpoint; the gradient passes straight through."""
    with torch.no_grad():
        rounded = dequantize_blocks(*quantize_blocks(weight.detach()))
    return weight + (rounded.to(weight.dtype) - weight).detach()
