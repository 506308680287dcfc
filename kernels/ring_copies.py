"""The copying warps of `weight_ring`: one for weights, one for tokens.

A stage of the rings holds a k-step: its weights, its tokens and one scale a token. `full` says that all have landed,
`empty`, a step later, that all who multiplied them are done.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait


@gluon.jit
def _relay(full, landed, i, STAGES: gl.constexpr):
    """When the weights of step `i` are there, say so to those who also wait for its tokens."""
    mbarrier.wait(landed.index(i % STAGES), (i // STAGES) & 1)
    mbarrier.arrive(full.index(i % STAGES))


@gluon.jit
def stream_weights(
    w_desc, w_ring, full, landed, empty, n0, first, steps,
    CHUNKS: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """The warp that copies weights, from the first moment; with AHEAD at most so many steps are under way."""
    CHUNK: gl.constexpr = w_desc.block_shape[0]
    for i in range(steps):
        stage = i % STAGES
        if AHEAD > 0 and i >= AHEAD:
            _relay(full, landed, i - AHEAD, STAGES)
        if i >= STAGES:
            mbarrier.wait(empty.index(stage), (i // STAGES - 1) & 1)
        arrival = landed.index(stage) if AHEAD > 0 else full.index(stage)
        mbarrier.expect(arrival, CHUNKS * CHUNK * 128)
        for c in gl.static_range(CHUNKS):
            at = [n0 + c * CHUNK, (first + i) * 128]
            tma.async_copy_global_to_shared(w_desc, at, arrival, w_ring.index(stage * CHUNKS + c))
    if AHEAD > 0:
        for i in range(gl.maximum(steps - AHEAD, 0), steps):
            _relay(full, landed, i, STAGES)


@gluon.jit
def stream_tokens(
    x_desc, xs_desc, x_ring, xs_ring, full, empty, m0, first, steps,
    ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that copies tokens and their scales, once the kernels before have made them."""
    BLOCK: gl.constexpr = x_desc.block_shape[0]
    BLOCKS: gl.constexpr = ROWS // BLOCK
    gdc_wait()
    for i in range(steps):
        stage = i % STAGES
        arrival = full.index(stage)
        if i >= STAGES:
            mbarrier.wait(empty.index(stage), (i // STAGES - 1) & 1)
        mbarrier.expect(arrival, ROWS * 128 + 4 * (ROWS if ROWS > 32 else 32))
        for b in gl.static_range(BLOCKS):
            at = [m0 + b * BLOCK, (first + i) * 128]
            tma.async_copy_global_to_shared(x_desc, at, arrival, x_ring.index(stage * BLOCKS + b))
        tma.async_copy_global_to_shared(xs_desc, [first + i, m0], arrival, xs_ring.index(stage))
