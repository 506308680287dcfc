"""The device code of `mla_decode_split`: a copying warp and two multiplying groups, on 64 heads of one token (Gluon).

Two pages are in shared memory: one is multiplied while the other comes. The scores of a page begin behind the values of
the one before. Each group takes half of a page's tokens for the scores and half of the latent's columns for the values.
`full` says that a quarter of a page's columns has landed, so that products begin before all are there, and `empty` that
a page's values are multiplied.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def _fetch(wide_desc, rope_desc, latent, rope, full, quarter, row):
    """Start the copies of 64 rows of 576: four of 128 latent columns, with the first also the rotated ones."""
    pairs = latent._reinterpret(rope_desc.dtype, [4, 2, 64, 64], wide_desc.layout)
    mbarrier.expect(full.index(quarter), 64 * 192 * 2)
    tma.async_copy_global_to_shared(rope_desc, [row, 512], full.index(quarter), rope)
    tma.async_copy_global_to_shared(wide_desc, [0, row, 0], full.index(quarter), pairs.index(0))
    for c in gl.static_range(1, 4):
        mbarrier.expect(full.index(quarter + c), 64 * 128 * 2)
        tma.async_copy_global_to_shared(wide_desc, [2 * c, row, 0], full.index(quarter + c), pairs.index(c))


@gluon.jit
def _copy(
    q_desc, q_rope_desc, k_desc, k_rope_desc, out_desc, q_latent, q_rope, latents, ropes, q_full, full, empty,
    table, guessed, guess, mass_ptr, scale, page_rows, q_row, out_row, limit, old, first, last,
):  # fmt: skip
    """The copying warp. Pages of earlier steps wait for no kernel."""
    ahead = gl.maximum(first, gl.minimum(first + 2, gl.minimum(last, old)))
    for page in range(first, ahead):
        slot = page - first
        block = guess
        if page != guessed:
            block = gl.load(table + page)
        row = block * page_rows
        _fetch(k_desc, k_rope_desc, latents.index(slot), ropes.index(slot), full, slot * 4, row)
    gdc_wait()
    _fetch(q_desc, q_rope_desc, q_latent, q_rope, q_full, 0, q_row)
    for page in range(ahead, last):
        slot = (page - first) % 2
        row = gl.load(table + page) * page_rows
        if page >= first + 2:
            mbarrier.wait(empty.index(slot), ((page - first) // 2 - 1) & 1)
        _fetch(k_desc, k_rope_desc, latents.index(slot), ropes.index(slot), full, slot * 4, row)


@gluon.jit
def _score(q_latent, q_rope, latent, rope, q_full, full, quarter, phase, LAYOUT: gl.constexpr):
    """Start the products of the queries by a page, each as soon as its columns are there; five groups of wgmma."""
    queries = q_latent._reinterpret(latent.dtype, [4, 64, 128], latent.layout)
    keys = latent._reinterpret(latent.dtype, [4, 64, 128], latent.layout)
    s = gl.zeros([64, 64], gl.float32, LAYOUT)
    for c in gl.static_range(4):
        mbarrier.wait(q_full.index(c), 0)
        mbarrier.wait(full.index(quarter + c), phase)
        if c == 0:
            s = warpgroup_mma(q_rope, rope.permute([1, 0]), s, use_acc=False, is_async=True)
        s = warpgroup_mma(queries.index(c), keys.index(c).permute([1, 0]), s, is_async=True)
    return s


@gluon.jit
def _weigh(s, top, rope, valid, LAYOUT: gl.constexpr):
    """Softmax's weights of a page, stored where its rotated keys were; the new maximum, and what old sums shrink by."""
    token = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    s = gl.where((token < valid)[None, :], s, -1e30)
    new_top = gl.maximum(top, gl.max(s, axis=1))
    weights = gl.exp2(s - new_top[:, None])
    rope.store(weights.to(rope.dtype))
    fence_async_shared()
    gl.thread_barrier()
    return weights, new_top, gl.exp2(top - new_top)


@gluon.jit
def _clear(latent, valid):
    """Zero a page's tokens past the limit: they may be anything, and 0 * NaN is NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    row = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    chunks = latent._reinterpret(latent.dtype, [8, 64, 64], latent.layout)
    for c in range(8):
        chunk = chunks.index(c)
        value = chunk.load(LAYOUT)
        chunk.store(gl.where((row < valid)[:, None], value, gl.zeros_like(value)))


@gluon.jit
def _multiply(
    q_desc, q_rope_desc, k_desc, k_rope_desc, out_desc, q_latent, q_rope, latents, ropes, q_full, full, empty,
    table, guessed, guess, mass_ptr, scale, page_rows, q_row, out_row, limit, old, first, last,
):  # fmt: skip
    KIND: gl.constexpr = k_rope_desc.dtype
    WIDE: gl.constexpr = k_rope_desc.layout
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    VALUES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    top = gl.full([64], -1e30, gl.float32, ROW)
    mass = gl.zeros([64], gl.float32, ROW)
    left = gl.zeros([64, 256], gl.float32, VALUES)
    right = gl.zeros([64, 256], gl.float32, VALUES)
    s = _score(q_latent, q_rope, latents.index(0), ropes.index(0), q_full, full, 0, 0, SCORES)
    s = warpgroup_mma_wait(0, deps=[s]) * scale
    for page in range(first, last - 1):
        slot = (page - first) % 2
        following = (page + 1 - first) % 2
        halves = latents.index(slot)._reinterpret(KIND, [2, 64, 256], WIDE)
        weights, top, shrink = _weigh(s, top, ropes.index(slot), 64, SCORES)
        if page > first:
            less = gl.convert_layout(shrink, gl.SliceLayout(1, VALUES))[:, None]
            left = left * less
            right = right * less
        left = warpgroup_mma(ropes.index(slot), halves.index(0), left, is_async=True)
        right = warpgroup_mma(ropes.index(slot), halves.index(1), right, is_async=True)
        s = _score(
            q_latent, q_rope, latents.index(following), ropes.index(following), q_full, full, following * 4,
            ((page + 1 - first) // 2) & 1, SCORES,
        )  # fmt: skip
        mass = mass * shrink + gl.sum(weights, axis=1)
        left, right = warpgroup_mma_wait(5, deps=[left, right])
        gl.thread_barrier()
        mbarrier.arrive(empty.index(slot))
        s = warpgroup_mma_wait(0, deps=[s]) * scale
    slot = (last - 1 - first) % 2
    valid = limit - (last - 1) * 64
    if valid < 64:
        _clear(latents.index(slot), valid)
    halves = latents.index(slot)._reinterpret(KIND, [2, 64, 256], WIDE)
    weights, top, shrink = _weigh(s, top, ropes.index(slot), valid, SCORES)
    if last - 1 > first:
        less = gl.convert_layout(shrink, gl.SliceLayout(1, VALUES))[:, None]
        left = left * less
        right = right * less
    left = warpgroup_mma(ropes.index(slot), halves.index(0), left, is_async=True)
    right = warpgroup_mma(ropes.index(slot), halves.index(1), right, is_async=True)
    mass = mass * shrink + gl.sum(weights, axis=1)
    # The queries are read; what was found takes their place, and one half leaves while the other is multiplied.
    inverse = gl.convert_layout(1.0 / mass, gl.SliceLayout(1, VALUES))[:, None]
    staged = q_latent._reinterpret(KIND, [2, 64, 256], WIDE)
    chunks = q_latent._reinterpret(KIND, [2, 4, 64, 64], out_desc.layout)
    left = warpgroup_mma_wait(1, deps=[left])
    staged.index(0).store((left * inverse).to(KIND))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out_desc, [0, out_row, 0], chunks.index(0))
    right = warpgroup_mma_wait(0, deps=[right])
    staged.index(1).store((right * inverse).to(KIND))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out_desc, [4, out_row, 0], chunks.index(1))
    gl.store(mass_ptr + out_row + gl.arange(0, 64, ROW), top + gl.log2(mass))
    tma.store_wait(0)


@gluon.jit
def attend_pages(
    q_desc, q_rope_desc, k_desc, k_rope_desc, out_desc, tables_ptr, totals_ptr, mass_ptr,
    scale, tokens, heads, query_len, stride_table, max_blocks, page_rows,
    PIECES: gl.constexpr,
):  # fmt: skip
    """Programs [tokens, heads / 64, pieces]."""
    gdc_launch_dependents()
    token, tile, piece = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    tiles = gl.num_programs(1)
    request = token // query_len
    table = tables_ptr + request * stride_table
    # Where the first page stands if the table is full; it comes with the length that says whether it does.
    guessed = gl.minimum(piece * gl.cdiv(max_blocks, PIECES), max_blocks - 1)
    guess = gl.load(table + guessed)
    total = gl.load(totals_ptr + request)
    limit = total - query_len + 1 + token % query_len
    pages = gl.cdiv(limit, 64)
    share = gl.cdiv(pages, PIECES)
    first = piece * share
    last = gl.minimum(first + share, pages)
    if first < last:
        KIND: gl.constexpr = k_rope_desc.dtype
        WIDE: gl.constexpr = k_rope_desc.layout
        q_latent = gl.allocate_shared_memory(KIND, [64, 512], WIDE)
        q_rope = gl.allocate_shared_memory(KIND, [64, 64], WIDE)
        latents = gl.allocate_shared_memory(KIND, [2, 64, 512], WIDE)
        ropes = gl.allocate_shared_memory(KIND, [2, 64, 64], WIDE)
        q_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
        full = gl.allocate_shared_memory(gl.int64, [8, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        # The compiler puts a barrier between any two of one array.
        for i in gl.static_range(8):
            mbarrier.init(full.index(i), count=1)
            if i < 4:
                mbarrier.init(q_full.index(i), count=1)
            elif i < 6:
                mbarrier.init(empty.index(i - 4), count=1)
        fence_async_shared()
        args = (
            q_desc, q_rope_desc, k_desc, k_rope_desc, out_desc, q_latent, q_rope, latents, ropes, q_full, full, empty,
            table, guessed, guess, mass_ptr, scale, page_rows,
            token * heads + tile * 64, ((piece * tokens + token) * tiles + tile) * 64,
            limit, (total - query_len) // 64, first, last,
        )  # fmt: skip
        gl.warp_specialize([(_multiply, args), (_copy, args)], [1], [24])
