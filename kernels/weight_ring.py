"""The device code of `fp8_gemm_ahead`: a copying warp, a ring of stages in shared memory, and multiplying groups.

A stage holds a k-step: 64 output features a chunk, the tokens, and one scale a token. `full` says that its copies have
landed, `empty`, a step later, that all who multiplied it are done. Names in capitals are compile-time constants, see
`AheadTile`.
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
def _stream(
    x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
    ROWS: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp."""
    BYTES: gl.constexpr = (CHUNKS * 64 + ROWS) * 128 + 4 * (ROWS if ROWS > 32 else 32)
    steps = last - first
    ahead = gl.minimum(steps, STAGES)
    for i in range(ahead):
        mbarrier.expect(full.index(i), BYTES)
        for c in gl.static_range(CHUNKS):
            at = [n0 + c * 64, (first + i) * 128]
            tma.async_copy_global_to_shared(w_desc, at, full.index(i), w_ring.index(i * CHUNKS + c))
    gdc_wait()
    for i in range(ahead):
        tma.async_copy_global_to_shared(x_desc, [m0, (first + i) * 128], full.index(i), x_ring.index(i))
        tma.async_copy_global_to_shared(xs_desc, [first + i, m0], full.index(i), xs_ring.index(i))
    for i in range(ahead, steps):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES - 1) & 1)
        mbarrier.expect(full.index(stage), BYTES)
        k = (first + i) * 128
        for c in gl.static_range(CHUNKS):
            at = [n0 + c * 64, k]
            tma.async_copy_global_to_shared(w_desc, at, full.index(stage), w_ring.index(stage * CHUNKS + c))
        tma.async_copy_global_to_shared(x_desc, [m0, k], full.index(stage), x_ring.index(stage))
        tma.async_copy_global_to_shared(xs_desc, [first + i, m0], full.index(stage), xs_ring.index(stage))


@gluon.jit
def _finish(
    staged, out_ptr, part_ptr, arrived_ptr, M, N, m0, f0, part,
    ROWS: gl.constexpr, PARTS: gl.constexpr, REDUCE: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    """Store one group's sums [ROWS, 64] and, with REDUCE, add those of the other splits in order of K."""
    WIDE: gl.constexpr = 128 // staged.dtype.primitive_bitwidth  # elements of 16 bytes
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDE], [WIDE // 2, 64 // WIDE], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = f0 + gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    keep = (m0 + row < M)[:, None] & (column < N)[None, :]
    offset = (m0 + row).to(gl.int64)[:, None] * N + column[None, :]
    value = staged.load(LAYOUT)
    if PARTS == 1:
        gl.store(out_ptr + offset, value, mask=keep)
    else:
        size = M.to(gl.int64) * N
        if REDUCE and SHARE:
            mine = (row * PARTS // ROWS == part)[:, None]  # rows that this split adds
            slot = arrived_ptr + (m0 // ROWS) * gl.cdiv(N, 64) + f0 // 64
            gl.store(part_ptr + part * size + offset, value, mask=keep & (mine == 0))
            gl.thread_barrier()
            arrived = gl.atomic_add(slot, 1, sem="acq_rel") + 1
            while arrived < PARTS:
                arrived = gl.atomic_add(slot, 0, sem="acq_rel")
            gl.thread_barrier()
            total = gl.zeros([ROWS, 64], gl.float32, LAYOUT)
            for s in gl.static_range(PARTS):
                other = part_ptr + s * size + offset
                other = gl.load(other, mask=keep & mine & (s != part), other=0.0, cache_modifier=".cg")
                total += gl.where(s == part, value, other)
            gl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=keep & mine)
            if gl.atomic_add(slot, 1, sem="relaxed") == 2 * PARTS - 1:
                gl.store(slot, 0)
        else:
            gl.store(part_ptr + part * size + offset, value, mask=keep)
            if REDUCE:
                gl.thread_barrier()
                slot = arrived_ptr + (m0 // ROWS) * gl.cdiv(N, 64) + f0 // 64
                if gl.atomic_add(slot, 1, sem="acq_rel") == PARTS - 1:
                    gl.thread_barrier()
                    total = gl.zeros([ROWS, 64], gl.float32, LAYOUT)
                    for s in gl.static_range(PARTS):
                        total += gl.load(part_ptr + s * size + offset, mask=keep, other=0.0, cache_modifier=".cg")
                    gl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=keep)
                    gl.store(slot, 0)


@gluon.jit
def _issue(x_ring, w_ring, full, i, zero, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr):
    """Start the product of step `i` as soon as its operands are there."""
    stage = i % STAGES
    mbarrier.wait(full.index(stage), (i // STAGES) & 1)
    w = w_ring.index(stage * CHUNKS + CHUNK)
    return warpgroup_mma(w, x_ring.index(stage).permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def _promote(
    acc, product, weight, scales, empty, i,
    STAGES: gl.constexpr, STEP: gl.constexpr, REPEAT: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """`acc` plus the scaled product of step `i`; gives back the stage of the group's step before."""
    if i >= STEP:
        # Loads of scales may still be under way when the barrier lets all threads pass. The fence makes them complete,
        # before TMA writes over them; a step later that costs no time.
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(empty.index((i - STEP) % STAGES))
    scale = scales.index(i % STAGES * REPEAT).load(gl.SliceLayout(0, MMA))
    return acc + product * (scale * weight)[None, :]


@gluon.jit
def _sums(
    x_ring, scales, w_ring, full, empty, ws_row, steps,
    CHUNK: gl.constexpr, CHUNKS: gl.constexpr, BEGIN: gl.constexpr, STEP: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, RUN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """One group's sums [64, ROWS] over its share of the steps."""
    REPEAT: gl.constexpr = 1 if ROWS >= 32 else 32 // ROWS
    acc = gl.zeros([64, ROWS], gl.float32, MMA)
    zero = gl.zeros([64, ROWS], gl.float32, MMA)
    mine = (steps - BEGIN + STEP - 1) // STEP
    rounds = mine // RUN if RUN > 1 else 0
    # In a round of RUN steps one product runs while the one before it is scaled.
    for r in range(rounds):
        i = BEGIN + r * RUN * STEP
        weight = gl.load(ws_row + i)
        following = gl.load(ws_row + i + STEP)
        product = _issue(x_ring, w_ring, full, i, zero, CHUNK, CHUNKS, STAGES)
        for u in gl.static_range(RUN - 1):
            after = gl.load(ws_row + gl.minimum(i + (u + 2) * STEP, steps - 1))
            running = _issue(x_ring, w_ring, full, i + (u + 1) * STEP, zero, CHUNK, CHUNKS, STAGES)
            ready = warpgroup_mma_wait(1, deps=[product])
            acc = _promote(acc, ready, weight, scales, empty, i + u * STEP, STAGES, STEP, REPEAT, MMA)
            product = running
            weight = following
            following = after
        ready = warpgroup_mma_wait(0, deps=[product])
        acc = _promote(acc, ready, weight, scales, empty, i + (RUN - 1) * STEP, STAGES, STEP, REPEAT, MMA)
    for i in range(BEGIN + rounds * RUN * STEP, steps, STEP):
        weight = gl.load(ws_row + i)
        product = _issue(x_ring, w_ring, full, i, zero, CHUNK, CHUNKS, STAGES)
        ready = warpgroup_mma_wait(0, deps=[product])
        acc = _promote(acc, ready, weight, scales, empty, i, STAGES, STEP, REPEAT, MMA)
    return acc


@gluon.jit
def _multiply(
    x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
    M, N, stride_wsn, m0, n0, split, first, last,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, SPLITS: gl.constexpr,
    REDUCE: gl.constexpr, ALONG_K: gl.constexpr, SHARE: gl.constexpr, RUN: gl.constexpr,
):  # fmt: skip
    """Four multiplying warps: 64 of a tile's features (or, along K, every GROUPS-th of its steps), all its tokens."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 32])
    CHUNKS: gl.constexpr = 1 if ALONG_K else GROUPS
    CHUNK: gl.constexpr = 0 if ALONG_K else GROUP
    PARTS: gl.constexpr = SPLITS * GROUPS if ALONG_K else SPLITS
    steps = last - first
    staged = staging.index(GROUP)
    part = split * GROUPS + GROUP if ALONG_K else split
    f0 = n0 + CHUNK * 64
    ws_row = ws_ptr + (gl.minimum(f0, N - 1) // 128) * stride_wsn + first
    acc = _sums(
        x_ring, scales, w_ring, full, empty, ws_row, steps, CHUNK, CHUNKS, GROUP if ALONG_K else 0,
        GROUPS if ALONG_K else 1, ROWS, STAGES, RUN, MMA,
    )  # fmt: skip
    # Every group is done with the ring before anyone's sums go through it.
    mbarrier.arrive(done)
    mbarrier.wait(done, 0)
    gdc_wait()
    staged.permute([1, 0]).store(acc.to(staging.dtype))
    gl.thread_barrier()
    if f0 < N:
        _finish(staged, out_ptr, part_ptr, arrived_ptr, M, N, m0, f0, part, ROWS, PARTS, REDUCE, SHARE)


@gluon.jit(do_not_specialize=["M"])
def multiply_ahead(
    x_desc, xs_desc, w_desc, ws_ptr, out_ptr, part_ptr, arrived_ptr, M, N, K, stride_wsn,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr, REDUCE: gl.constexpr,
    ALONG_K: gl.constexpr, SHARE: gl.constexpr, RUN: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = 1 if ALONG_K else GROUPS
    PARTS: gl.constexpr = SPLITS * GROUPS if ALONG_K else SPLITS
    SCALES: gl.constexpr = ROWS if ROWS > 32 else 32
    n0, split, m0 = gl.program_id(0) * (CHUNKS * 64), gl.program_id(1), gl.program_id(2) * ROWS
    k_blocks = gl.cdiv(K, 128)
    first = split * k_blocks // SPLITS
    last = (split + 1) * k_blocks // SPLITS
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES * CHUNKS, 64, 128], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, ROWS, 128], x_desc.layout)
    xs_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, SCALES], xs_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CHUNKS)
    mbarrier.init(done, count=GROUPS)
    scales = xs_ring._reinterpret(gl.float32, [STAGES * SCALES // ROWS, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kind: gl.constexpr = out_ptr.dtype.element_ty if PARTS == 1 else gl.float32
    STAGED: gl.constexpr = gl.NVMMASharedLayout(128, kind.primitive_bitwidth, 2)
    staging = w_ring._reinterpret(kind, [GROUPS, ROWS, 64], STAGED)
    # fmt: off
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         0, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, CHUNKS, STAGES)),
        ], [1], [24])
    elif GROUPS == 2:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         0, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         1, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, CHUNKS, STAGES)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         0, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         1, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, last,
                         2, GROUPS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE, RUN)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, CHUNKS, STAGES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on
