"""What a group of `weight_ring` does with its sums: store them, and add those of the other splits of K."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def finish(
    value, out_ptr, part_ptr, slot, M, N, m0, f0, part,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, PARTS: gl.constexpr, REDUCE: gl.constexpr, SHARE: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store sums `value` [ROWS, COLUMNS] and, with REDUCE, add those of the other splits in order of K."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = f0 + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    keep = (m0 + row < M)[:, None] & (column < N)[None, :]
    offset = (m0 + row).to(gl.int64)[:, None] * N + column[None, :]
    if PARTS == 1:
        gl.store(out_ptr + offset, value.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        size = M.to(gl.int64) * N
        if REDUCE and SHARE:
            mine = (row * PARTS // ROWS == part)[:, None]  # rows that this split adds
            gl.store(part_ptr + part * size + offset, value, mask=keep & (mine == 0))
            gl.thread_barrier()
            arrived = gl.atomic_add(slot, 1, sem="acq_rel") + 1
            while arrived < PARTS:
                arrived = gl.atomic_add(slot, 0, sem="acq_rel")
            gl.thread_barrier()
            total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
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
                if gl.atomic_add(slot, 1, sem="acq_rel") == PARTS - 1:
                    gl.thread_barrier()
                    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
                    for s in gl.static_range(PARTS):
                        total += gl.load(part_ptr + s * size + offset, mask=keep, other=0.0, cache_modifier=".cg")
                    gl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=keep)
                    gl.store(slot, 0)
