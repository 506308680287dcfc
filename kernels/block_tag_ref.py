"""Content hash of a KV block, reference: `h = sum_i mix(w_i) * a_i mod 2^64` over the block's int32 words.

`a_i = splitmix64(i) | 1` is odd, so one changed word always changes h; distinct a_i make it depend on places. `mix` is
a bijection of 32-bit words, taken as signed: `(w ^ (w >> 15)) * 0x2C1B3C6D`. Sums commute, so any split over programs
gives the same value. It guards against torn and reused memory, not against an adversary.
"""

from functools import lru_cache

import torch
from torch import Tensor

MIX_SHIFT = 15
MIX_MULTIPLIER = 0x2C1B3C6D
CHUNK_WORDS = 1 << 16  # large enough to hide the cost of an operator, small enough for the cache


def block_hash(words: Tensor, skip: tuple[tuple[int, int], ...] = ()) -> int:
    """Hash `words` [n] int32 without the word ranges `skip` (start, stop); 0 <= h < 2^64."""
    return int(_sum(words, skip)) & 0xFFFFFFFFFFFFFFFF


def block_hashes(pool: Tensor, blocks: Tensor, skip: tuple[tuple[int, int], ...] = ()) -> Tensor:
    """Hash some blocks of `pool` [blocks, words] int32: int64 [len(blocks)], each `block_hash` as two's complement."""
    return torch.stack([_sum(pool[block], skip) for block in blocks.tolist()]) if len(blocks) else blocks.new_zeros(0)


def _sum(words: Tensor, skip: tuple[tuple[int, int], ...]) -> Tensor:
    """The hash as a wrapped int64 scalar."""
    factors = _factors(words.numel(), words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    narrow = torch.empty(min(CHUNK_WORDS, words.numel()), dtype=torch.int32, device=words.device)
    wide = torch.empty_like(narrow, dtype=torch.int64)
    for first, last in _kept(words.numel(), skip):
        for start in range(first, last, CHUNK_WORDS):
            part = words[start : min(start + CHUNK_WORDS, last)]
            n = part.numel()
            torch.bitwise_right_shift(part, MIX_SHIFT, out=narrow[:n])
            wide[:n].copy_(narrow[:n].bitwise_xor_(part).mul_(MIX_MULTIPLIER))
            factor = factors[start : start + n]
            # torch has no integer dot product on a GPU.
            total += wide[:n].mul_(factor).sum() if words.is_cuda else torch.dot(wide[:n], factor)
    return total


def _kept(n: int, skip: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    kept, start = [], 0
    for first, last in sorted(skip):
        if first > start:
            kept.append((start, first))
        start = max(start, last)
    if start < n:
        kept.append((start, n))
    return kept


@lru_cache(maxsize=4)
def _factors(n: int, device: torch.device) -> Tensor:
    """a_0 .. a_{n-1} as wrapped int64."""
    z = torch.arange(1, n + 1, dtype=torch.int64, device=device) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return (z ^ _shift_right(z, 31)) | 1


def _shift_right(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
