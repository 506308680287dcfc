"""Content hash of KV blocks on the device; the formula is `block_tag_ref`'s and the values are equal bit for bit.

Sums modulo 2^64 commute, so programs add their parts with integer atomics and the result is deterministic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.block_tag_ref import MIX_MULTIPLIER, MIX_SHIFT

WORDS = 1024  # words a program hashes per step
STEPS = 16

_SHIFT = tl.constexpr(MIX_SHIFT)
_MULTIPLIER = tl.constexpr(MIX_MULTIPLIER)


@triton.jit
def _block_hashes(
    pool_ptr, blocks_ptr, out_ptr, words, stride_block, SKIP: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr
):
    block = tl.load(blocks_ptr + tl.program_id(0)).to(tl.int64)
    total = tl.zeros((WORDS,), tl.uint64)
    for step in range(STEPS):
        i = (tl.program_id(1) * STEPS + step) * WORDS + tl.arange(0, WORDS)
        keep = i < words
        for s in tl.static_range(len(SKIP) // 2):
            keep = keep & ((i < SKIP[2 * s]) | (i >= SKIP[2 * s + 1]))
        w = tl.load(pool_ptr + block * stride_block + i, mask=keep, other=0)
        mixed = (w ^ (w >> _SHIFT)) * _MULTIPLIER
        z = (i + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        factor = (z ^ (z >> 31)) | 1
        total += mixed.to(tl.int64).to(tl.uint64) * factor  # a dead word is 0, and mix(0) = 0
    tl.atomic_add(out_ptr + tl.program_id(0), tl.sum(total.to(tl.int64, bitcast=True), axis=0), sem="relaxed")


def block_hashes(pool: Tensor, blocks: Tensor, skip: tuple[tuple[int, int], ...] = ()) -> Tensor:
    """Hash some blocks of a pool.

    Args:
        pool: int32 [blocks, words], words contiguous, any block stride.
        blocks: int32 or int64 [n], which blocks.
        skip: word ranges (start, stop) left out.

    Returns:
        int64 [n], each `block_tag_ref.block_hash` as two's complement.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("pool", pool, (None, None))
    check.dtype("pool", pool, torch.int32)
    check.dense_rows("pool", pool)
    check.shape("blocks", blocks, (None,))
    check.dtype("blocks", blocks, torch.int32, torch.int64)
    check.contiguous("blocks", blocks)
    check.same_device("blocks", blocks, pool)
    out = torch.zeros(blocks.shape[0], dtype=torch.int64, device=pool.device)
    words = pool.shape[1]
    if out.numel() and words:
        flat = tuple(bound for pair in skip for bound in pair)
        grid = (blocks.shape[0], triton.cdiv(words, WORDS * STEPS))
        _block_hashes[grid](
            pool, blocks, out, words, pool.stride(0), SKIP=flat, WORDS=WORDS, STEPS=STEPS, num_warps=4
        )  # fmt: skip
    return out


def block_hash(words: Tensor, skip: tuple[tuple[int, int], ...] = ()) -> int:
    """Hash `words` [n] int32 on their device; waits for the result."""
    check.shape("words", words, (None,))
    one = torch.zeros(1, dtype=torch.int32, device=words.device)
    return int(block_hashes(words[None], one, skip)) & 0xFFFFFFFFFFFFFFFF
