"""Latent in and out of the block-major pool, reference.

One layer's view is [blocks, block_tokens, R + P], any block stride.
"""

from torch import Tensor


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
