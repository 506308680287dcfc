"""Philox4x32-10 and the Gumbel noise made of it, bit-equal to `philox_ref`; the noisiest of some tokens."""

import triton
import triton.language as tl

NEG_INF = tl.constexpr(float("-inf"))


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
def noisiest(row, quad, live, V, temperature, least, seed, position):
    """Over the tokens 4 `quad` to 4 `quad` + 3 where `live`: the best score and the lowest id that has it.

    A logit's score is logit / temperature + noise, -inf below `least`; at temperature 0 the logit itself.
    """
    zero = (quad * 0).to(tl.uint32)
    w0, w1, w2, w3 = philox(
        quad.to(tl.uint32), zero + (position & 0xFFFFFFFF).to(tl.uint32),
        zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        zero, zero + (seed & 0xFFFFFFFF).to(tl.uint32), zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )  # fmt: skip
    greedy = temperature <= 0.0
    best = tl.full(quad.shape, NEG_INF, tl.float32)
    which = quad * 4
    for lane in tl.static_range(4):
        at = quad * 4 + lane
        bits = w0 if lane == 0 else (w1 if lane == 1 else (w2 if lane == 2 else w3))
        inside = live & (at < V)
        x = tl.load(row + at, mask=inside, other=NEG_INF)
        noisy = x / tl.where(greedy, 1.0, temperature) + gumbel(bits)
        score = tl.where(greedy, x, tl.where(x >= least, noisy, NEG_INF))
        score = tl.where(inside, score, NEG_INF)
        which = tl.where(score > best, at, which)
        best = tl.maximum(score, best)
    top = tl.max(best, axis=0)
    return top, tl.min(tl.where((best == top) & live, which, V), axis=0)
