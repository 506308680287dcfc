"""The per-head products around absorbed attention, reference (DeepSeek-V2 report, section 2.1.2).

`kv_b_proj` is split by head into `k_b` [heads, R, nope] (transposed, so that what is summed is contiguous) and `v_b`
[heads, V, R], FP8 with one scale per head and 128 of R (nope and V are one scale block). Activations are quantised per
token, head and 128 channels.
"""

import torch
from torch import Tensor

from kernels.fp8_block_ref import dequantize_per_token, quantize_per_token
from kernels.latent_ref import rotate_interleaved


def absorb_query(q: Tensor, k_b: Tensor, k_scale: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Carry queries into the latent space and rotate their positional part.

    Args:
        q: [tokens, heads, nope + P]; k_b: e4m3 [heads, R, nope]; k_scale: fp32 [heads, ceil(R/128)].
        cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].

    Returns:
        [tokens, heads, R + P] in q's type.
    """
    _, rank, nope = k_b.shape
    weight = k_b.float() * k_scale.repeat_interleave(128, 1)[:, :rank, None]
    absorbed = torch.einsum("thd,hrd->thr", _rounded(q[..., :nope]), weight)
    rotated = rotate_interleaved(q[..., nope:], cos[positions][:, None], sin[positions][:, None])
    return torch.cat((absorbed.to(q.dtype), rotated), dim=-1)


def project_value(attended: Tensor, v_b: Tensor, v_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bring attended latent back to values and quantise them for the output projection.

    Args:
        attended: [tokens, heads, R]; v_b: e4m3 [heads, V, R]; v_scale: fp32 [heads, ceil(R/128)].

    Returns:
        e4m3 [tokens, heads * V], fp32 scale [tokens, heads * V / 128].
    """
    rank = v_b.shape[2]
    weight = v_b.float() * v_scale.repeat_interleave(128, 1)[:, None, :rank]
    return quantize_per_token(torch.einsum("thr,hvr->thv", _rounded(attended), weight).flatten(1))


def _rounded(x: Tensor) -> Tensor:
    """`x` [tokens, heads, D] as FP8 holds it."""
    return dequantize_per_token(*quantize_per_token(x.flatten(0, 1))).view(x.shape)
