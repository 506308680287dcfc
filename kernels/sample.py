"""Sampling by the Gumbel maximum on the device: the draw is a function of (logits, seed, position) alone.

Three launches of fixed shape. `_least` finds, for rows that filter, the smallest logit that top-k, top-p and min-p
keep, by bisection over the ordered bits of fp32. `_draw` adds Philox noise (bit-equal to `philox_ref`) and takes the
maximum of a piece of the vocabulary, `_join` the maximum of the pieces. Rows never meet, so a request draws the same in
any batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check

NEG_INF = tl.constexpr(float("-inf"))
PIECE = 8192  # logits a program of `_draw` looks at
SCAN = 8192  # logits `_least` looks at per step


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 on uint32: four words."""
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, 0xD2511F53)
        high1 = tl.umulhi(c2, 0xCD9E8D57)
        low0 = c0 * 0xD2511F53
        low1 = c2 * 0xCD9E8D57
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def gumbel(bits):
    """Standard Gumbel noise from uint32: -log(-log1p(-u))."""
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    w = 1.0 - u
    return -tl.log(tl.where(w == 1.0, u, tl.log(w) * (u / (w - 1.0))))


@triton.jit
def _ordered(x):
    """Signed integers in the order of fp32 `x`."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(row, V, key, top, inverse, SCAN: tl.constexpr):
    """How many logits are at least `key`, and the mass of exp((x - top) * inverse) over them."""
    count = tl.zeros((SCAN,), tl.int32)
    mass = tl.zeros((SCAN,), tl.float32)
    for start in range(0, V, SCAN):
        at = start + tl.arange(0, SCAN)
        x = tl.load(row + at, mask=at < V, other=NEG_INF)
        kept = (_ordered(x) >= key) & (at < V)
        count += kept.to(tl.int32)
        mass += tl.where(kept, tl.exp((x - top) * inverse), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _least(logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, least_ptr, V, stride_row, SCAN: tl.constexpr):
    index = tl.program_id(0)
    row = logits_ptr + index.to(tl.int64) * stride_row
    temperature = tl.load(temperature_ptr + index)
    k = tl.load(top_k_ptr + index).to(tl.int32)
    p = tl.load(top_p_ptr + index)
    min_p = tl.load(min_p_ptr + index)
    least = NEG_INF + tl.zeros((), tl.float32)
    filtered = (k > 0) | (p < 1.0) | (min_p > 0.0)
    if (temperature > 0.0) & filtered:
        inverse = 1.0 / temperature
        best = tl.full((SCAN,), NEG_INF, tl.float32)
        for start in range(0, V, SCAN):
            at = start + tl.arange(0, SCAN)
            best = tl.maximum(best, tl.load(row + at, mask=at < V, other=NEG_INF))
        top = tl.max(best, axis=0)
        high = _ordered(top)
        bound = _ordered(least)
        if (k > 0) & (k < V):
            # The largest key that at least k logits reach: invariant reach(low) >= k, reach(above high) < k.
            low = bound
            ceiling = high
            while low < ceiling:
                middle = (low & ceiling) + ((low ^ ceiling) >> 1)
                middle += (low ^ ceiling) & 1
                reach, _ = _above(row, V, middle, top, inverse, SCAN)
                if reach >= k:
                    low = middle
                else:
                    ceiling = middle - 1
            bound = low
        if p < 1.0:
            _, mass = _above(row, V, bound, top, inverse, SCAN)
            wanted = mass * p
            low = bound
            ceiling = high
            while low < ceiling:
                middle = (low & ceiling) + ((low ^ ceiling) >> 1)
                middle += (low ^ ceiling) & 1
                _, held = _above(row, V, middle, top, inverse, SCAN)
                if held >= wanted:
                    low = middle
                else:
                    ceiling = middle - 1
            bound = low
        least = _unordered(bound)
        if min_p > 0.0:
            least = tl.maximum(least, top + tl.log(min_p) * temperature)
    tl.store(least_ptr + index, least)


@triton.jit
def _draw(
    logits_ptr, temperature_ptr, least_ptr, seeds_ptr, positions_ptr, best_ptr, id_ptr, V, stride_row, pieces,
    PIECE: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0)
    piece = tl.program_id(1)
    row = logits_ptr + index.to(tl.int64) * stride_row
    temperature = tl.load(temperature_ptr + index)
    least = tl.load(least_ptr + index)
    seed = tl.load(seeds_ptr + index)
    position = tl.load(positions_ptr + index)
    quad = piece * (PIECE // 4) + tl.arange(0, PIECE // 4)
    zero = (quad * 0).to(tl.uint32)
    w0, w1, w2, w3 = philox(
        quad.to(tl.uint32), zero + (position & 0xFFFFFFFF).to(tl.uint32),
        zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        zero, zero + (seed & 0xFFFFFFFF).to(tl.uint32), zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )  # fmt: skip
    greedy = temperature <= 0.0
    best = tl.full((PIECE // 4,), NEG_INF, tl.float32)
    which = tl.zeros((PIECE // 4,), tl.int32)
    for lane in tl.static_range(4):
        at = quad * 4 + lane
        bits = w0 if lane == 0 else (w1 if lane == 1 else (w2 if lane == 2 else w3))
        x = tl.load(row + at, mask=at < V, other=NEG_INF)
        noisy = x / tl.where(greedy, 1.0, temperature) + gumbel(bits)
        score = tl.where(greedy, x, tl.where(x >= least, noisy, NEG_INF))
        score = tl.where(at < V, score, NEG_INF)
        which = tl.where(score > best, at, which) if lane > 0 else at
        best = tl.maximum(score, best)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, which, V), axis=0)
    tl.store(best_ptr + index * pieces + piece, top)
    tl.store(id_ptr + index * pieces + piece, first)


@triton.jit
def _join(best_ptr, id_ptr, out_ptr, pieces, PIECES: tl.constexpr):
    index = tl.program_id(0)
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
    _least[(requests,)](
        logits, temperature, top_k, top_p, min_p, least, vocab, logits.stride(0), SCAN=SCAN, num_warps=16
    )  # fmt: skip
    _draw[(requests, pieces)](
        logits, temperature, least, seeds, positions, best, ids, vocab, logits.stride(0), pieces, PIECE=PIECE,
        num_warps=8,
    )  # fmt: skip
    _join[(requests,)](best, ids, out, pieces, PIECES=triton.next_power_of_2(pieces), num_warps=1)
    return out
