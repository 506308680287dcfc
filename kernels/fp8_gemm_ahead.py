"""FP8 matrix product with block scales whose weights are on their way before its inputs exist (Gluon, GPU only).

As `fp8_gemm_splitk`, the weight is wgmma's left operand and K is split over programs. Here one warp streams weights and
activations through a ring of shared memory, and fills the ring with weights while the kernels before it still run: only
activations wait for them. One to three groups of four warps multiply, each its own 64 or 128 output features, so that
one scales its sums while another's product runs. The order of additions depends on (N, K) and the tile alone.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import check
from kernels.arrival import arrival_counters
from kernels.fp8_gemm_splitk import check_operands
from kernels.pdl import launch_options
from kernels.tiles import BLOCK_K, sm_count

FEATURES = 64  # of one wgmma
SCALE_ROWS = 32  # TMA writes to multiples of 128 bytes of shared memory only, 32 scales
COPYING_REGISTERS = 24
WIDE_ROWS = gl.NVMMASharedLayout(128, 8, 2)  # rows of 128 bytes, swizzled
FLAT = gl.NVMMASharedLayout(0, 32, 2)


@dataclass(frozen=True)
class AheadTile:
    """How one program works: `rows` tokens, `stages` k-steps in flight, `splits` programs along K.

    Its `groups` of four multiplying warps take `chunks` of 64 output features each or, `along_k`, the same ones and
    every `groups`-th k-step. `registers` a thread, averaged over the program's warps; None takes the whole file. With
    `share` the splits of a tile wait for each other and each adds its share of the rows; all programs must fit the chip
    at once, one a multiprocessor. Otherwise the last split to arrive adds them all.
    """

    rows: int
    groups: int = 1
    splits: int = 1
    stages: int = 4
    along_k: bool = False
    registers: int | None = None
    chunks: int = 1
    share: bool = False

    @property
    def features(self) -> int:
        return FEATURES * self.chunks * (1 if self.along_k else self.groups)

    @property
    def parts(self) -> int:
        return self.splits * self.groups if self.along_k else self.splits


@gluon.jit
def _stream(
    x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
    ROWS: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp."""
    BYTES: gl.constexpr = (CHUNKS * 64 + ROWS) * 128 + (4 * ROWS if ROWS >= 32 else 0)
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
        if ROWS >= 32:
            tma.async_copy_global_to_shared(xs_desc, [first + i, m0], full.index(i), xs_ring.index(i))
    for i in range(ahead, steps):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES - 1) & 1)
        mbarrier.expect(full.index(stage), BYTES)
        for c in gl.static_range(CHUNKS):
            at = [n0 + c * 64, (first + i) * 128]
            tma.async_copy_global_to_shared(w_desc, at, full.index(stage), w_ring.index(stage * CHUNKS + c))
        tma.async_copy_global_to_shared(x_desc, [m0, (first + i) * 128], full.index(stage), x_ring.index(stage))
        if ROWS >= 32:
            tma.async_copy_global_to_shared(xs_desc, [first + i, m0], full.index(stage), xs_ring.index(stage))


@gluon.jit
def _finish(
    staging, out_ptr, part_ptr, arrived_ptr, M, N, m0, f0, part, slot,
    FIRST: gl.constexpr, CHUNKS: gl.constexpr, ROWS: gl.constexpr, PARTS: gl.constexpr, REDUCE: gl.constexpr,
    SHARE: gl.constexpr,
):  # fmt: skip
    """Store one group's sums, CHUNKS x [ROWS, 64] from FIRST on, and add those of the other splits in order of K."""
    WIDE: gl.constexpr = 128 // staging.dtype.primitive_bitwidth  # elements of 16 bytes
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDE], [WIDE // 2, 64 // WIDE], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    offset = (m0 + row).to(gl.int64)[:, None] * N + (f0 + column)[None, :]
    live = (m0 + row < M)[:, None]
    size = M.to(gl.int64) * N
    mine = (row * PARTS // ROWS == part)[:, None]  # rows that this split adds, where all share that
    for c in gl.static_range(CHUNKS):
        value = staging.index(FIRST + c).load(LAYOUT)
        keep = live & (f0 + c * 64 + column < N)[None, :]
        if PARTS == 1:
            gl.store(out_ptr + offset + c * 64, value, mask=keep)
        elif REDUCE and SHARE:
            gl.store(part_ptr + part * size + offset + c * 64, value, mask=keep & (mine == 0))
        else:
            gl.store(part_ptr + part * size + offset + c * 64, value, mask=keep)
    if REDUCE and PARTS > 1:
        gl.thread_barrier()
        before = gl.atomic_add(arrived_ptr + slot, 1, sem="acq_rel")
        if SHARE:
            while before < PARTS:
                before = gl.atomic_add(arrived_ptr + slot, 0, sem="acq_rel")
        else:
            before += 1
        if before >= PARTS:
            gl.thread_barrier()
            for c in gl.static_range(CHUNKS):
                keep = live & (f0 + c * 64 + column < N)[None, :]
                own = staging.index(FIRST + c).load(LAYOUT)
                total = gl.zeros([ROWS, 64], gl.float32, LAYOUT)
                for s in gl.static_range(PARTS):
                    at = part_ptr + s * size + offset + c * 64
                    if SHARE:
                        other = gl.load(at, mask=keep & mine & (s != part), other=0.0, cache_modifier=".cg")
                        total += gl.where(s == part, own, other)
                    else:
                        total += gl.load(at, mask=keep, other=0.0, cache_modifier=".cg")
                to = out_ptr + offset + c * 64
                if SHARE:
                    gl.store(to, total.to(out_ptr.dtype.element_ty), mask=keep & mine)
                else:
                    gl.store(to, total.to(out_ptr.dtype.element_ty), mask=keep)
            if SHARE:
                if gl.atomic_add(arrived_ptr + slot, 1, sem="relaxed") == 2 * PARTS - 1:
                    gl.store(arrived_ptr + slot, 0)
            else:
                gl.store(arrived_ptr + slot, 0)


@gluon.jit
def _multiply(
    x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr, arrived_ptr,
    M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, CHUNKS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SPLITS: gl.constexpr, REDUCE: gl.constexpr, ALONG_K: gl.constexpr, SHARE: gl.constexpr,
):  # fmt: skip
    """Four multiplying warps: their chunks of the tile's features (or, along K, of its k-steps), all its tokens."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 32])
    ALL: gl.constexpr = CHUNKS if ALONG_K else CHUNKS * GROUPS
    CHUNK: gl.constexpr = 0 if ALONG_K else CHUNKS * GROUP
    PARTS: gl.constexpr = SPLITS * GROUPS if ALONG_K else SPLITS
    STEP: gl.constexpr = GROUPS if ALONG_K else 1
    start = first + (GROUP if ALONG_K else 0)
    f0 = n0 + CHUNK * 64
    ws0 = ws_ptr + (gl.minimum(f0, N - 1) // 128) * stride_wsn
    ws1 = ws_ptr + (gl.minimum(f0 + 64, N - 1) // 128) * stride_wsn
    acc0 = gl.zeros([64, ROWS], gl.float32, MMA)
    acc1 = gl.zeros([64, ROWS], gl.float32, MMA)
    zero = gl.zeros([64, ROWS], gl.float32, MMA)
    product = zero
    next0 = gl.load(ws0 + gl.minimum(start, last - 1))
    next1 = gl.load(ws1 + gl.minimum(start, last - 1))
    if ROWS < 32:
        token = m0 + gl.arange(0, ROWS, gl.SliceLayout(0, MMA))
        gdc_wait()
        next_scale = gl.load(xs_ptr + gl.minimum(start, last - 1) * stride_xs + token, mask=token < M, other=0.0)
    for kb in range(start, last, STEP):
        i = kb - first
        stage = i % STAGES
        following = gl.minimum(kb + STEP, last - 1)
        weight0, weight1 = next0, next1
        next0 = gl.load(ws0 + following)
        if CHUNKS == 2:
            next1 = gl.load(ws1 + following)
        if ROWS < 32:
            scale = next_scale
            next_scale = gl.load(xs_ptr + following * stride_xs + token, mask=token < M, other=0.0)
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        x = x_ring.index(stage).permute([1, 0])
        w = w_ring.index(stage * ALL + CHUNK)
        if CHUNKS == 2:
            # `never` is false, but only at run time: so a product takes the registers of the one before it.
            product = warpgroup_mma(w, x, product, use_acc=never != 0, is_async=True)
        else:
            product = warpgroup_mma(w, x, zero, use_acc=False, is_async=True)
        product = warpgroup_mma_wait(0, deps=[product])
        if ROWS >= 32:
            scale = xs_ring.index(stage).reshape([ROWS]).load(gl.SliceLayout(0, MMA))
        acc0 += product * (scale * weight0)[None, :]
        if CHUNKS == 2:
            w = w_ring.index(stage * ALL + CHUNK + 1)
            product = warpgroup_mma(w, x, product, use_acc=never != 0, is_async=True)
            product = warpgroup_mma_wait(0, deps=[product])
            if ROWS >= 32:
                scale = xs_ring.index(stage).reshape([ROWS]).load(gl.SliceLayout(0, MMA))
            acc1 += product * (scale * weight1)[None, :]
        gl.thread_barrier()
        mbarrier.arrive(empty.index(stage))
    # Every group is done with the ring before anyone's sums go through it.
    mbarrier.arrive(done)
    mbarrier.wait(done, 0)
    gdc_wait()
    staging.index(GROUP * CHUNKS).permute([1, 0]).store(acc0.to(staging.dtype))
    if CHUNKS == 2:
        staging.index(GROUP * CHUNKS + 1).permute([1, 0]).store(acc1.to(staging.dtype))
    gl.thread_barrier()
    part = split * GROUPS + GROUP if ALONG_K else split
    slot = (m0 // ROWS) * gl.cdiv(N, 64) + f0 // 64
    if f0 < N:
        _finish(
            staging, out_ptr, part_ptr, arrived_ptr, M, N, m0, f0, part, slot, GROUP * CHUNKS, CHUNKS, ROWS, PARTS,
            REDUCE, SHARE,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["M", "never"])
def _ahead(
    x_desc, xs_desc, xs_ptr, w_desc, ws_ptr, out_ptr, part_ptr, arrived_ptr, M, N, K, stride_xs, stride_wsn,
    never,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, CHUNKS: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    REDUCE: gl.constexpr, ALONG_K: gl.constexpr, SHARE: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    ALL: gl.constexpr = CHUNKS if ALONG_K else CHUNKS * GROUPS
    PARTS: gl.constexpr = SPLITS * GROUPS if ALONG_K else SPLITS
    n0 = gl.program_id(0) * (ALL * 64)
    split = gl.program_id(1)
    m0 = gl.program_id(2) * ROWS
    k_blocks = gl.cdiv(K, 128)
    first = split * k_blocks // SPLITS
    last = (split + 1) * k_blocks // SPLITS
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES * ALL, 64, 128], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, ROWS, 128], x_desc.layout)
    if ROWS >= 32:
        xs_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, ROWS], xs_desc.layout)
    else:
        xs_ring = x_ring
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1 if ALONG_K else GROUPS)
    mbarrier.init(done, count=GROUPS)
    kind: gl.constexpr = out_ptr.dtype.element_ty if PARTS == 1 else gl.float32
    STAGED: gl.constexpr = gl.NVMMASharedLayout(128, kind.primitive_bitwidth, 2)
    staging = w_ring._reinterpret(kind, [GROUPS * CHUNKS, ROWS, 64], STAGED)
    # fmt: off
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         0, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, ALL, STAGES)),
        ], [1], [24])
    elif GROUPS == 2:
        gl.warp_specialize([
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         0, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         1, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, ALL, STAGES)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         0, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         1, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_multiply, (x_ring, xs_ring, w_ring, staging, full, empty, done, xs_ptr, ws_ptr, out_ptr, part_ptr,
                         arrived_ptr, M, N, stride_xs, stride_wsn, never, m0, n0, split, first, last,
                         2, GROUPS, CHUNKS, ROWS, STAGES, SPLITS, REDUCE, ALONG_K, SHARE)),
            (_stream, (x_desc, xs_desc, w_desc, x_ring, xs_ring, w_ring, full, empty, n0, m0, first, last,
                       ROWS, ALL, STAGES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on


def fp8_gemm_ahead(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    tile: AheadTile,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    reduce: bool = True,
) -> Tensor:
    """As `fp8_gemm_splitk.fp8_gemm_splitk`, with `tile`.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_operands(x, x_scale, w, w_scale)
    (rows, inner), columns = x.shape, w.shape[0]
    parts = tile.parts
    out = x.new_empty((rows, columns), dtype=out_dtype if reduce else torch.float32)
    sums = out[None] if parts == 1 else x.new_empty((parts, rows, columns), dtype=torch.float32)
    if rows == 0:
        return out if reduce else sums
    grid = (triton.cdiv(columns, tile.features), tile.splits, triton.cdiv(rows, tile.rows))
    if tile.share:
        check.at_most("programs that wait for each other", grid[0] * grid[1] * grid[2], sm_count(x.device))
    counted = reduce and parts > 1
    arrived = arrival_counters(triton.cdiv(columns, FEATURES) * grid[2], x.device) if counted else out
    warps = 4 * (tile.groups + 1)
    registers = min(tile.registers or 65536 // (32 * warps), 255) // 8 * 8
    each = min((registers * (tile.groups + 1) - COPYING_REGISTERS) // tile.groups, 255) // 8 * 8
    _ahead[grid](
        descriptor(x, [tile.rows, BLOCK_K], WIDE_ROWS),
        descriptor(x_scale.T, [1, tile.rows], FLAT) if tile.rows >= SCALE_ROWS else x_scale,
        x_scale,
        descriptor(w, [FEATURES, BLOCK_K], WIDE_ROWS),
        w_scale,
        out,
        sums,
        arrived,
        rows,
        columns,
        inner,
        x_scale.stride(1),
        w_scale.stride(0),
        0,
        ROWS=tile.rows,
        GROUPS=tile.groups,
        CHUNKS=tile.chunks,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        REDUCE=reduce,
        ALONG_K=tile.along_k,
        SHARE=tile.share,
        REGISTERS=each,
        num_warps=4,
        maxnreg=registers,
        launch_pdl=launch_options(x.device)["launch_pdl"],
    )
    return out if reduce else sums


def descriptor(tensor: Tensor, block: list[int], layout: gl.NVMMASharedLayout) -> TensorDescriptor:
    """TMA's view of a matrix."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)
