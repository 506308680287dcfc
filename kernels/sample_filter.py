"""The logits that top-k, top-p and min-p keep, found without sorting the row.

`survey` leaves the maximum of every 16 logits. A logit is at least as large as some bound only if its group's maximum
is, so the program that then looks for the least kept logit holds the few groups that matter in registers and bisects
the ordered bits of fp32 there; where too much is kept for that (a flat nucleus, a large k, many equal logits) it
bisects over the whole row. Sums have a fixed order: the same row gives the same answer.
"""

import triton
import triton.language as tl

from kernels.noise import noisiest
from kernels.pdl import begin

NEG_INF = tl.constexpr(float("-inf"))
GROUP = 16  # logits that share a maximum
HELD = 1024  # groups that `find_least` holds at once
DRAWN = 256  # groups that it draws from itself
SCAN = 8192  # logits it looks at per step when it must read the row


@triton.jit
def _ordered(x):
    """Signed integers in the order of fp32 `x`; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _between(low, high):
    """The middle of two keys, rounded up; no overflow."""
    return (low & high) + ((low ^ high) >> 1) + ((low ^ high) & 1)


@triton.jit
def _filters(temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, index, V):
    """Of a row: whether it filters, 1 / temperature, k (V where it does not limit), p and min-p."""
    temperature = tl.load(temperature_ptr + index)
    k = tl.load(top_k_ptr + index).to(tl.int32)
    p = tl.load(top_p_ptr + index)
    min_p = tl.load(min_p_ptr + index)
    filtered = (temperature > 0.0) & ((k > 0) | (p < 1.0) | (min_p > 0.0))
    return filtered, 1.0 / tl.where(filtered, temperature, 1.0), tl.where((k > 0) & (k < V), k, V), p, min_p


@triton.jit
def _weight(x, top, inverse):
    """exp((x - top) / temperature), 0 for a forbidden token."""
    return tl.where(x > NEG_INF, tl.exp((x - top) * inverse), 0.0)


@triton.jit
def survey(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, maxima_ptr, pieces_ptr, V, stride_row, pieces,
    PIECE: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Maxima of the groups of a piece of the vocabulary, and its mass relative to its own maximum."""
    begin(PDL)
    index, piece = tl.program_id(0), tl.program_id(1)
    filtered, inverse, _, p, _ = _filters(temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, index, V)
    if filtered:
        at = piece * PIECE + tl.arange(0, PIECE)
        x = tl.load(logits_ptr + index.to(tl.int64) * stride_row + at, mask=at < V, other=NEG_INF)
        maxima = tl.max(tl.reshape(x, (PIECE // GROUP, GROUP)), axis=1)
        place = (index * pieces + piece) * (PIECE // GROUP) + tl.arange(0, PIECE // GROUP)
        tl.store(maxima_ptr + place, maxima)
        if p < 1.0:
            top = tl.max(maxima, axis=0)
            to = pieces_ptr + index * 2 * pieces + piece
            tl.store(to, top)
            tl.store(to + pieces, tl.sum(_weight(x, top, inverse), axis=0))


@triton.jit
def _list_groups(list_ptr, chosen, groups):
    """Write the numbers of the chosen groups next to each other."""
    tl.debug_barrier()
    tl.store(list_ptr + tl.cumsum(chosen.to(tl.int32), axis=0) - 1, groups, mask=chosen)
    tl.debug_barrier()


@triton.jit
def _quarter(low, high, quarter: tl.constexpr):
    """The key `quarter` quarters of the way up from `low`, rounded up; no overflow."""
    return (low + ((high.to(tl.int64) - low) * quarter + 3) // 4).to(tl.int32)


@triton.jit
def _search_row(row, V, low, high, wanted, top, inverse, COUNT: tl.constexpr, SCAN: tl.constexpr):
    """The largest key in [low, high] that logits of at least `wanted` mass (or number) reach, else `low`.

    Three keys a pass over the row, so every pass settles two bits.
    """
    while low < high:
        first, second, third = _quarter(low, high, 1), _quarter(low, high, 2), _quarter(low, high, 3)
        above_first = tl.zeros((SCAN,), tl.float32)
        above_second = tl.zeros((SCAN,), tl.float32)
        above_third = tl.zeros((SCAN,), tl.float32)
        for start in tl.range(0, V, SCAN, num_stages=3):
            at = start + tl.arange(0, SCAN)
            x = tl.load(row + at, mask=at < V, other=NEG_INF)
            if COUNT:
                weight = tl.where(at < V, 1.0, 0.0)  # exact up to 2^24
            else:
                weight = _weight(x, top, inverse)
            above_first += tl.where(x >= _unordered(first), weight, 0.0)
            above_second += tl.where(x >= _unordered(second), weight, 0.0)
            above_third += tl.where(x >= _unordered(third), weight, 0.0)
        if tl.sum(above_third, axis=0) >= wanted:
            low = third
        elif tl.sum(above_second, axis=0) >= wanted:
            low = second
            high = third - 1
        elif tl.sum(above_first, axis=0) >= wanted:
            low = first
            high = second - 1
        else:
            high = first - 1
    return low


@triton.jit
def _mass(row, V, key, top, inverse, SCAN: tl.constexpr):
    """The mass of the logits that are at least `key`."""
    mass = tl.zeros((SCAN,), tl.float32)
    for start in tl.range(0, V, SCAN, num_stages=3):
        at = start + tl.arange(0, SCAN)
        x = tl.load(row + at, mask=at < V, other=NEG_INF)
        mass += tl.where(x >= _unordered(key), _weight(x, top, inverse), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _bound_of_groups(maxima, live, low, high, least: tl.constexpr, most: tl.constexpr, k):
    """A key that at least min(k, least) groups' maxima reach, but at most `most` if there is one, else the largest."""
    wanted = tl.minimum(k, least)
    while low < high:
        middle = _between(low, high)
        reach = tl.sum((live & (maxima >= middle)).to(tl.int32), axis=0)
        if reach >= wanted:
            low = middle
            if reach <= most:
                high = middle
        else:
            high = middle - 1
    return low


@triton.jit
def find_least(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr, maxima_ptr, pieces_ptr,
    list_ptr, least_ptr, out_ptr, V, stride_row, pieces,
    PIECE: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, HELD: tl.constexpr,
    DRAWN: tl.constexpr, SCAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The least kept logit of a row; where few groups hold all that is kept, the draw itself, and least is +inf."""
    begin(PDL)
    index = tl.program_id(0)
    filtered, inverse, k, p, min_p = _filters(temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, index, V)
    least = tl.full((), NEG_INF, tl.float32)
    if filtered:
        row = logits_ptr + index.to(tl.int64) * stride_row
        temperature = tl.load(temperature_ptr + index)
        groups = tl.arange(0, GROUPS)
        live = groups < tl.cdiv(V, GROUP)
        maxima = _ordered(tl.load(maxima_ptr + index * pieces * (PIECE // GROUP) + groups, mask=live, other=NEG_INF))
        high = tl.max(maxima, axis=0)
        lowest = _ordered(tl.full((), NEG_INF, tl.float32))
        top = _unordered(high)
        floor = lowest
        if min_p > 0.0:
            floor = tl.maximum(_ordered(top + tl.log(min_p) * temperature), lowest)
        bound = lowest
        edge = _bound_of_groups(maxima, live, lowest, high, HELD * 3 // 4, HELD, k)
        chosen = live & (maxima >= edge)
        held = tl.sum(chosen.to(tl.int32), axis=0)
        total = tl.zeros((), tl.float32)
        if p < 1.0:
            piece = tl.arange(0, PIECES)
            of_piece = pieces_ptr + index * 2 * pieces + piece
            tops = tl.load(of_piece, mask=piece < pieces, other=NEG_INF)
            masses = tl.load(of_piece + pieces, mask=piece < pieces, other=0.0)
            total = tl.sum(masses * _weight(tops, top, inverse), axis=0)
        found = (k == V) & (p >= 1.0)
        if (not found) & (held <= HELD):
            _list_groups(list_ptr + index * HELD, chosen, groups)
            slot = tl.arange(0, HELD)
            group = tl.load(list_ptr + index * HELD + slot, mask=slot < held, other=0)
            at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            inside = (slot < held)[:, None] & (at < V)
            x = tl.load(row + at, mask=inside, other=NEG_INF)
            # All logits that are at least `edge` are here.
            found = True
            if k < V:
                found = tl.sum((x >= _unordered(edge)).to(tl.int32)) >= k
                low = edge
                ceiling = tl.where(found, high, edge)
                while low < ceiling:
                    middle = _between(low, ceiling)
                    reach = tl.sum((x >= _unordered(middle)).to(tl.int32))
                    if reach >= k:
                        low = middle
                        if reach == k:
                            ceiling = middle
                    else:
                        ceiling = middle - 1
                bound = low
            else:
                bound = edge
            if (p < 1.0) & found:
                weight = _weight(x, top, inverse)
                reached = tl.sum(tl.where(x >= _unordered(bound), weight, 0.0))
                wanted = tl.where(k < V, reached, total) * p
                # What is below `floor` falls to min-p anyway.
                found = (reached >= wanted) | (floor >= bound)
                low = bound
                ceiling = tl.where(reached >= wanted, high, bound)
                while low < ceiling:
                    middle = _between(low, ceiling)
                    if tl.sum(tl.where(x >= _unordered(middle), weight, 0.0)) >= wanted:
                        low = middle
                    else:
                        ceiling = middle - 1
                bound = low
        if not found:
            bound = lowest
            if k < V:
                # The k-th largest maximum is no larger than the k-th largest logit.
                bound = _bound_of_groups(maxima, live, lowest, high, GROUPS, 0, k)
                bound = _search_row(row, V, bound, high, k.to(tl.float32), top, inverse, True, SCAN)
            if p < 1.0:
                wanted = _mass(row, V, bound, top, inverse, SCAN) * p
                bound = tl.maximum(bound, floor)
                bound = _search_row(row, V, bound, high, wanted, top, inverse, False, SCAN)
        bound = tl.maximum(bound, floor)
        least = _unordered(bound)
        chosen = live & (maxima >= bound)
        held = tl.sum(chosen.to(tl.int32), axis=0)
        if held <= DRAWN:
            _list_groups(list_ptr + index * HELD, chosen, groups)
            quad = tl.arange(0, DRAWN * GROUP // 4)
            slot = quad // (GROUP // 4)
            group = tl.load(list_ptr + index * HELD + slot, mask=slot < held, other=0)
            quad = group * (GROUP // 4) + quad % (GROUP // 4)
            seed, position = tl.load(seeds_ptr + index), tl.load(positions_ptr + index)
            _, first = noisiest(row, quad, slot < held, V, temperature, least, seed, position)
            tl.store(out_ptr + index, first.to(tl.int64))
            least = tl.full((), float("inf"), tl.float32)
    tl.store(least_ptr + index, least)
