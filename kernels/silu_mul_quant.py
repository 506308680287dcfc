"""`silu(gate) * up` and its FP8 quantisation, over as many rows as the device-side counts say.

A fixed number of programs walks the live rows alone, so one captured launch serves every routing and dead rows cost
nothing. Scales go where the grouped product reads them: column-major within each expert.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import begin, launch_options
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import padded_scale_buffer, pow2_at_least, sm_count

# Programs a multiprocessor, by the most rows a multiprocessor: many short programs even out what counts leave uneven.
PROGRAMS_PER_SM: tuple[tuple[float, int], ...] = ((32, 16), (64, 32), (float("inf"), 64))
GROUPS = 16  # 128-channel groups a program handles at once
WARPS = 4


@triton.jit(do_not_specialize=["max_rows"])
def _silu_mul_quant(
    x_ptr, counts_ptr, q_ptr, scale_ptr, stride_expert, stride_row, stride_scale_expert, stride_scale_group,
    max_rows, INNER, chunks,
    E: tl.constexpr, E_BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    ALL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    experts = tl.arange(0, E_BLOCK)
    if ALL:
        counts = tl.where(experts < E, max_rows, 0)
    else:
        counts = tl.load(counts_ptr + experts, mask=experts < E, other=0)
    ends = tl.cumsum(counts, axis=0)
    total = tl.sum(counts, axis=0) * chunks
    group = tl.arange(0, GROUPS)
    lane = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    for item in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=1):
        live_row = item // chunks
        chunk = item % chunks
        if E == 1:
            expert = live_row * 0
            row = live_row
        else:
            expert = tl.sum((ends <= live_row).to(tl.int32), axis=0)
            row = live_row - tl.sum(tl.where(experts < expert, counts, 0), axis=0)
        at = chunk * GROUPS * 128 + lane
        keep = at < INNER
        source = x_ptr + expert.to(tl.int64) * stride_expert + row.to(tl.int64) * stride_row
        gate = tl.load(source + at, mask=keep, other=0.0).to(tl.float32)
        up = tl.load(source + INNER + at, mask=keep, other=0.0).to(tl.float32)
        q, scale = quantize_groups(gate / (1.0 + tl.exp(-gate)) * up)
        flat = expert.to(tl.int64) * max_rows + row
        tl.store(q_ptr + flat * INNER + at, q.to(q_ptr.dtype.element_ty), mask=keep)
        groups = chunk * GROUPS + group
        base = scale_ptr + expert.to(tl.int64) * stride_scale_expert + row
        tl.store(base + groups.to(tl.int64) * stride_scale_group, scale, mask=groups * 128 < INNER)


def silu_mul_quant(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise `silu(gate) * up` of each expert's live rows.

    Args:
        x: [experts, max_rows, 2 I] bf16 or fp32, gate then up, I a multiple of 128; rows sorted without gaps are one
            expert.
        counts: int32 [experts], on the device; None means that all rows live.

    Returns:
        e4m3 [experts, max_rows, I]; fp32 scale [experts, max_rows, I/128], rows contiguous. Dead rows are not written.

    Raises:
        KernelArgumentError: wrong shape, stride, type or device.
    """
    check.shape("x", x, (None, None, None))
    check.dtype("x", x, torch.bfloat16, torch.float16, torch.float32)
    check.dense_rows("x", x)
    experts, max_rows, width = x.shape
    check.multiple("x.shape[2]", width, 256)
    if counts is not None:
        check.shape("counts", counts, (experts,))
        check.dtype("counts", counts, torch.int32)
        check.same_device("counts", counts, x)
    inner = width // 2
    q = x.new_empty((experts, max_rows, inner), dtype=check.FP8)
    scale = padded_scale_buffer(experts, max_rows, inner // 128, x.device)
    if q.numel():
        groups = min(GROUPS, pow2_at_least(inner // 128))
        chunks = triton.cdiv(inner, groups * 128)
        items, multiprocessors = experts * max_rows * chunks, sm_count(x.device)
        each = next(programs for limit, programs in PROGRAMS_PER_SM if items <= limit * multiprocessors)
        programs = min(items, multiprocessors * each)
        _silu_mul_quant[(programs,)](
            x, x if counts is None else counts, q, scale, x.stride(0), x.stride(1), scale.stride(0), scale.stride(2),
            max_rows, inner, chunks,
            E=experts, E_BLOCK=pow2_at_least(experts), GROUPS=groups, ALL=counts is None,
            num_warps=WARPS, **launch_options(x.device),
        )  # fmt: skip
    return q, scale
