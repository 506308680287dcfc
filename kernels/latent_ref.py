"""Latent in and out of the block-major pool, reference.

One layer's view is [blocks, block_tokens, R + P], any block stride.
"""

import torch
from torch import Tensor

from kernels.fp8_block_ref import quantize_per_token
from kernels.rms_norm_ref import rms_norm


def append_latent(cache: Tensor, latent: Tensor, slots: Tensor) -> None:
    """Store `latent` [tokens, R + P] at `slots` int64 [tokens] (block * block_tokens + offset); -1 stores nothing."""
    kept = slots >= 0
    slot = slots[kept]
    block_tokens = cache.shape[1]
    cache[slot // block_tokens, slot % block_tokens] = latent[kept].to(cache.dtype)


def gather_latent(cache: Tensor, block_table: Tensor, start: int, stop: int) -> Tensor:
    """Tokens `start..stop` of the request whose blocks are `block_table` int32 [max_blocks]: [stop - start, R + P]."""
    block_tokens = cache.shape[1]
    first = start // block_tokens
    blocks = block_table[first : -(-stop // block_tokens)].long()
    offset = start - first * block_tokens
    return cache[blocks].flatten(0, 1)[offset : offset + stop - start]


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (2i, 2i+1) of `x` [..., P] by angles with cos and sin [..., P/2] (DeepSeek's layout), in fp32."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def split_qkv_a(
    qkv: Tensor,
    q_norm: Tensor,
    kv_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slots: Tensor,
    latent: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finish the first projection: norm and quantise q's latent; norm and rotate the key's and store it.

    Args:
        qkv: [tokens, q_lora + R + P], or partial sums fp32 [splits, tokens, ...].
        q_norm: [q_lora]; kv_norm: [R]; cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].
        cache, slots: as `append_latent`.
        latent: [tokens, R + P], written as well where a prefill goes on to up-project it.

    Returns:
        q's latent e4m3 [tokens, q_lora] and its scale fp32 [tokens, ceil(q_lora/128)].
    """
    row = (qkv.sum(0) if qkv.dim() == 3 else qkv).to(q_norm.dtype)
    q_lora, rank = q_norm.shape[0], kv_norm.shape[0]
    normed = rms_norm(row[:, q_lora : q_lora + rank], kv_norm, eps)
    rotated = rotate_interleaved(row[:, q_lora + rank :], cos[positions], sin[positions])
    both = torch.cat((normed, rotated), dim=-1)
    append_latent(cache, both, slots)
    if latent is not None:
        latent.copy_(both)
    return quantize_per_token(rms_norm(row[:, :q_lora], q_norm, eps))
