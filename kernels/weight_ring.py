"""The device code of `fp8_gemm_ahead`: two rings in shared memory, the warps that fill them, groups that multiply.

Names in capitals are compile-time constants, see `AheadTile`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.ring_copies import stream_tokens, stream_weights
from kernels.split_sums import finish


@gluon.jit
def _issue(
    x_ring, w_ring, full, i, zero,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, ALONG: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start the product of step `i` as soon as its operands are there."""
    stage = i % STAGES
    mbarrier.wait(full.index(stage), (i // STAGES) & 1)
    if ALONG == "tokens":
        left = x_ring.index(i % STAGES * GROUPS + GROUP)
        right = w_ring.index(stage)
    else:
        left = w_ring.index(stage * GROUPS + GROUP if ALONG == "features" else stage)
        right = x_ring.index(i % STAGES)
    return warpgroup_mma(left, right.permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def _promote(
    acc, product, weight, scales, empty, i,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, ALONG: gl.constexpr, STAGES: gl.constexpr, STEP: gl.constexpr,
    REPEAT: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """`acc` plus the scaled product of step `i`; gives back the stage of the group's step before."""
    if i >= STEP:
        # Loads of scales may still be under way when the barrier lets all threads pass. The fence makes them complete,
        # before TMA writes over them; a step later that costs no time.
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(empty.index((i - STEP) % STAGES))
    if ALONG == "tokens":
        scale = scales.index(i % STAGES * GROUPS + GROUP).load(gl.SliceLayout(1, MMA))
        acc += product * (scale * weight)[:, None]
    else:
        scale = scales.index(i % STAGES * REPEAT).load(gl.SliceLayout(0, MMA))
        acc += product * (scale * weight)[None, :]
    return acc


@gluon.jit
def _sums(
    x_ring, scales, w_ring, full, empty, ws_row, steps,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, ALONG: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    RUN: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """One group's sums [64, WIDTH] over its share of the steps."""
    BEGIN: gl.constexpr = GROUP if ALONG == "k" else 0
    STEP: gl.constexpr = GROUPS if ALONG == "k" else 1
    REPEAT: gl.constexpr = 1 if WIDTH >= 32 else 32 // WIDTH
    acc = gl.zeros([64, WIDTH], gl.float32, MMA)
    zero = gl.zeros([64, WIDTH], gl.float32, MMA)
    mine = (steps - BEGIN + STEP - 1) // STEP
    rounds = mine // RUN if RUN > 1 else 0
    # In a round of RUN steps one product runs while the one before it is scaled.
    for r in range(rounds):
        i = BEGIN + r * RUN * STEP
        weight = gl.load(ws_row + i)
        following = gl.load(ws_row + i + STEP)
        product = _issue(x_ring, w_ring, full, i, zero, GROUP, GROUPS, ALONG, STAGES)
        for u in gl.static_range(RUN - 1):
            after = gl.load(ws_row + gl.minimum(i + (u + 2) * STEP, steps - 1))
            next_step = i + (u + 1) * STEP
            running = _issue(x_ring, w_ring, full, next_step, zero, GROUP, GROUPS, ALONG, STAGES)
            ready = warpgroup_mma_wait(1, deps=[product])
            done = i + u * STEP
            acc = _promote(acc, ready, weight, scales, empty, done, GROUP, GROUPS, ALONG, STAGES, STEP, REPEAT, MMA)
            product = running
            weight = following
            following = after
        ready = warpgroup_mma_wait(0, deps=[product])
        done = i + (RUN - 1) * STEP
        acc = _promote(acc, ready, weight, scales, empty, done, GROUP, GROUPS, ALONG, STAGES, STEP, REPEAT, MMA)
    for i in range(BEGIN + rounds * RUN * STEP, steps, STEP):
        weight = gl.load(ws_row + i)
        product = _issue(x_ring, w_ring, full, i, zero, GROUP, GROUPS, ALONG, STAGES)
        ready = warpgroup_mma_wait(0, deps=[product])
        acc = _promote(acc, ready, weight, scales, empty, i, GROUP, GROUPS, ALONG, STAGES, STEP, REPEAT, MMA)
    return acc


@gluon.jit
def _multiply(
    x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
    M, N, stride_wsn, m0, n0, split, first, steps,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, ALONG: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SPLITS: gl.constexpr, REDUCE: gl.constexpr, SHARE: gl.constexpr, RUN: gl.constexpr,
):  # fmt: skip
    """Four multiplying warps: a share of a tile's features, of its tokens, or of its steps along K."""
    WIDTH: gl.constexpr = 128 if ALONG == "tokens" else ROWS
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    COLUMNS: gl.constexpr = 128 if ALONG == "tokens" else 64
    f0 = n0 + GROUP * 64 if ALONG == "features" else n0
    ws_row = ws_ptr + (gl.minimum(f0, N - 1) // 128) * stride_wsn + first
    acc = _sums(
        x_ring, scales, w_ring, full, empty, ws_row, steps, GROUP, GROUPS, ALONG, WIDTH, STAGES, RUN, MMA,
    )  # fmt: skip
    # Every group is done with the rings before anyone's sums go through them.
    mbarrier.arrive(done)
    mbarrier.wait(done, 0)
    gdc_wait()
    staged = staging.index(GROUP)
    if ALONG == "tokens":
        staged.store(acc.to(staging.dtype))
    else:
        staged.permute([1, 0]).store(acc.to(staging.dtype))
    gl.thread_barrier()
    WIDE: gl.constexpr = 128 // staging.dtype.primitive_bitwidth  # elements of 16 bytes
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDE], [WIDE * 32 // COLUMNS, COLUMNS // WIDE], [4, 1], [1, 0])
    tile = (m0 // ROWS) * gl.cdiv(N, COLUMNS) + f0 // COLUMNS
    if ALONG == "k":  # each group adds and stores a share of the rows
        mbarrier.arrive(done)
        mbarrier.wait(done, 1)
        MINE: gl.constexpr = ROWS // GROUPS
        value = staging.index(0).slice(GROUP * MINE, MINE).load(LAYOUT)
        for g in gl.static_range(1, GROUPS):
            value += staging.index(g).slice(GROUP * MINE, MINE).load(LAYOUT)
        slot = arrived_ptr + tile * GROUPS + GROUP
        top = m0 + GROUP * MINE
        finish(value, out_ptr, part_ptr, slot, M, N, top, f0, split, MINE, COLUMNS, SPLITS, REDUCE, SHARE, LAYOUT)
    elif ALONG == "tokens":
        slot = arrived_ptr + tile * GROUPS + GROUP
        top = m0 + GROUP * 64
        value = staged.load(LAYOUT)
        finish(value, out_ptr, part_ptr, slot, M, N, top, f0, split, 64, COLUMNS, SPLITS, REDUCE, SHARE, LAYOUT)
    elif f0 < N:
        value = staged.load(LAYOUT)
        slot = arrived_ptr + tile
        finish(value, out_ptr, part_ptr, slot, M, N, m0, f0, split, ROWS, COLUMNS, SPLITS, REDUCE, SHARE, LAYOUT)


@gluon.jit(do_not_specialize=["M"])
def multiply_ahead(
    x_desc, xs_desc, w_desc, ws_ptr, out_ptr, part_ptr, arrived_ptr, M, N, K, stride_wsn,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, ALONG: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    AHEAD: gl.constexpr, REDUCE: gl.constexpr, SHARE: gl.constexpr, RUN: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = GROUPS if ALONG == "features" else 1
    CHUNK: gl.constexpr = w_desc.block_shape[0]
    BLOCK: gl.constexpr = x_desc.block_shape[0]
    SCALES: gl.constexpr = ROWS if ROWS > 32 else 32
    n0, split, m0 = gl.program_id(0) * (CHUNKS * CHUNK), gl.program_id(1), gl.program_id(2) * ROWS
    k_blocks = gl.cdiv(K, 128)
    first = split * k_blocks // SPLITS
    steps = (split + 1) * k_blocks // SPLITS - first
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES * CHUNKS, CHUNK, 128], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES * ROWS // BLOCK, BLOCK, 128], x_desc.layout)
    xs_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, SCALES], xs_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    landed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)  # weights, tokens
        if AHEAD > 0:
            mbarrier.init(landed.index(i), count=1)
        mbarrier.init(empty.index(i), count=1 if ALONG == "k" else GROUPS)
    mbarrier.init(done, count=GROUPS)
    EACH: gl.constexpr = BLOCK if ALONG == "tokens" else ROWS
    scales = xs_ring._reinterpret(gl.float32, [STAGES * SCALES // EACH, EACH], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kind: gl.constexpr = out_ptr.dtype.element_ty if SPLITS == 1 and ALONG != "k" else gl.float32
    STAGED: gl.constexpr = gl.NVMMASharedLayout(128, kind.primitive_bitwidth, 2)
    staging = w_ring._reinterpret(kind, [GROUPS, BLOCK, CHUNK], STAGED)
    # fmt: off
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         0, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (stream_weights, (w_desc, w_ring, full, landed, empty, n0, first, steps, CHUNKS, STAGES, AHEAD)),
            (stream_tokens, (x_desc, xs_desc, x_ring, xs_ring, full, empty, m0, first, steps, ROWS, STAGES)),
        ], [1, 1], [24, 24])
    elif GROUPS == 2:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         0, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         1, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (stream_weights, (w_desc, w_ring, full, landed, empty, n0, first, steps, CHUNKS, STAGES, AHEAD)),
            (stream_tokens, (x_desc, xs_desc, x_ring, xs_ring, full, empty, m0, first, steps, ROWS, STAGES)),
        ], [4, 1, 1], [REGISTERS, 24, 24])
    else:
        gl.warp_specialize([
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         0, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         1, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (_multiply, (x_ring, scales, w_ring, staging, full, empty, done, ws_ptr, out_ptr, part_ptr, arrived_ptr,
                         M, N, stride_wsn, m0, n0, split, first, steps,
                         2, GROUPS, ALONG, ROWS, STAGES, SPLITS, REDUCE, SHARE, RUN)),
            (stream_weights, (w_desc, w_ring, full, landed, empty, n0, first, steps, CHUNKS, STAGES, AHEAD)),
            (stream_tokens, (x_desc, xs_desc, x_ring, xs_ring, full, empty, m0, first, steps, ROWS, STAGES)),
        ], [4, 4, 1, 1], [REGISTERS, REGISTERS, 24, 24])
    # fmt: on
