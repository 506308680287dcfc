"""Philox4x32-10, reference (Salmon et al., SC 2011): a counter-based generator, so a draw needs no state.

uint32 values are held in int64 tensors, 0..2^32-1.
"""

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    """Four uint32 words for each counter (c0, c1, c2, c3) under key (k0, k1), all broadcastable int64."""
    for _ in range(ROUNDS):
        # A product of two uint32 wraps int64's sign; shift and mask still give its true high half.
        p0, p1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return c0, c1, c2, c3


def token_bits(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """The uint32 of every (seed, position, token id): int64 [requests, vocab].

    Counter (id // 4, position low, position high, 0), key (seed low, seed high); id % 4 picks the output word.
    """
    quad = torch.arange(-(-vocab // 4), device=seeds.device)[None]
    seed, position = seeds.long()[:, None], positions.long()[:, None]
    words = philox(
        quad,
        position & MASK,
        (position >> 32) & MASK,
        torch.zeros_like(position),
        seed & MASK,
        (seed >> 32) & MASK,
    )
    return torch.stack(words, dim=-1).flatten(1)[:, :vocab]


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32, from uint32 `bits`: -log(-log(1 - u)), finest where the noise is largest."""
    u = ((bits.float() + 0.5) * 2.0**-32).clamp_max(1.0 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))
