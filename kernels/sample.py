"""Sampling by the Gumbel maximum on the device: the draw is a function of (logits, seed, position) alone.

Four launches of fixed shape. Two find, for rows that filter, the smallest logit that top-k, top-p and min-p keep, and
draw at once where few are kept (`sample_filter`). `_draw` adds Philox noise (bit-equal to `philox_ref`) and takes the
maximum of a piece of the vocabulary, `_join` the maximum of the pieces. Rows never meet, so a request draws the same in
any batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.noise import NEG_INF, noisiest
from kernels.pdl import begin, launch_options
from kernels.sample_filter import DRAWN, GROUP, HELD, SCAN, find_least, survey
from kernels.tiles import pow2_at_least

PIECE = 8192  # logits a program of `_draw` and of `survey` looks at
DRAWN_ALREADY = tl.constexpr(float("inf"))


@triton.jit
def _draw(
    logits_ptr, temperature_ptr, least_ptr, seeds_ptr, positions_ptr, best_ptr, id_ptr, V, stride_row, pieces,
    PIECE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    index, piece = tl.program_id(0), tl.program_id(1)
    least = tl.load(least_ptr + index)
    if least < DRAWN_ALREADY:
        quad = piece * (PIECE // 4) + tl.arange(0, PIECE // 4)
        top, first = noisiest(
            logits_ptr + index.to(tl.int64) * stride_row, quad, quad >= 0, V, tl.load(temperature_ptr + index), least,
            tl.load(seeds_ptr + index), tl.load(positions_ptr + index),
        )  # fmt: skip
        tl.store(best_ptr + index * pieces + piece, top)
        tl.store(id_ptr + index * pieces + piece, first)


@triton.jit
def _join(least_ptr, best_ptr, id_ptr, out_ptr, pieces, PIECES: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    index = tl.program_id(0)
    if tl.load(least_ptr + index) < DRAWN_ALREADY:
        piece = tl.arange(0, PIECES)
        best = tl.load(best_ptr + index * pieces + piece, mask=piece < pieces, other=NEG_INF)
        ids = tl.load(id_ptr + index * pieces + piece, mask=piece < pieces, other=2147483647)
        first = tl.min(tl.where(best == tl.max(best, axis=0), ids, 2147483647), axis=0)
        tl.store(out_ptr + index, first.to(tl.int64))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row; see `sample_ref.sample`.

    Args:
        logits: fp32 [requests, vocab]; temperature, top_p, min_p: fp32 [requests]; top_k: int32 or int64 [requests];
            seeds, positions: int64 [requests].

    Returns:
        ids int64 [requests].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("logits", logits, (None, None))
    check.dtype("logits", logits, torch.float32)
    check.dense_rows("logits", logits)
    requests, vocab = logits.shape
    rows = {
        "temperature": temperature,
        "top_p": top_p,
        "min_p": min_p,
        "top_k": top_k,
        "seeds": seeds,
        "positions": positions,
    }
    for name, tensor in rows.items():
        check.shape(name, tensor, (requests,))
        check.same_device(name, tensor, logits)
        check.contiguous(name, tensor)
    for name in ("temperature", "top_p", "min_p"):
        check.dtype(name, rows[name], torch.float32)
    check.dtype("top_k", top_k, torch.int32, torch.int64)
    for name in ("seeds", "positions"):
        check.dtype(name, rows[name], torch.int64)
    out = logits.new_empty(requests, dtype=torch.int64)
    if requests == 0:
        return out
    pieces = triton.cdiv(vocab, PIECE)
    least = logits.new_empty(requests)
    best = logits.new_empty((requests, pieces))
    ids = logits.new_empty((requests, pieces), dtype=torch.int32)
    maxima = logits.new_empty((requests, pieces * PIECE // GROUP))
    of_pieces = logits.new_empty((requests, 2, pieces))
    held = logits.new_empty((requests, HELD), dtype=torch.int32)
    filters, options = (temperature, top_k, top_p, min_p), launch_options(logits.device)
    survey[(requests, pieces)](
        logits, *filters, maxima, of_pieces, vocab, logits.stride(0), pieces, PIECE=PIECE, GROUP=GROUP, num_warps=8,
        **options,
    )  # fmt: skip
    find_least[(requests,)](
        logits, *filters, seeds, positions, maxima, of_pieces, held, least, out, vocab, logits.stride(0), pieces,
        PIECE=PIECE, PIECES=pow2_at_least(pieces), GROUP=GROUP, GROUPS=pow2_at_least(triton.cdiv(vocab, GROUP)),
        HELD=HELD, DRAWN=DRAWN, SCAN=SCAN, num_warps=16, **options,
    )  # fmt: skip
    _draw[(requests, pieces)](
        logits, temperature, least, seeds, positions, best, ids, vocab, logits.stride(0), pieces, PIECE=PIECE,
        num_warps=8, **options,
    )  # fmt: skip
    _join[(requests,)](least, best, ids, out, pieces, PIECES=pow2_at_least(pieces), num_warps=1, **options)
    return out
