"""What the chip reaches on plain work: the denominators of every fraction."""

import torch

from kernels.bench import inputs
from kernels.bench.record import Limits
from kernels.bench.timing import time_us

GIB = 1 << 30
SIDE = 8192


def measure_limits() -> Limits:
    """Stream memory, and multiply 8192^3 in bf16 and in FP8 (cuBLAS), on random data."""
    bf16, fp8 = _products()
    return Limits(_stream(), bf16, fp8)


def _stream() -> float:
    """Bytes/s, the better of reading 2 GiB while writing 2 GiB and of reading alone."""
    source = torch.randn(GIB, dtype=inputs.BF16, device=inputs.device())
    out = torch.empty_like(source)
    both_us = time_us([lambda: torch.neg(source, out=out)], launches=4)
    read_us = time_us([lambda: source.view(torch.int32).amax()], launches=4)
    return max(4 * GIB / both_us, 2 * GIB / read_us) * 1e6


def _products() -> tuple[float, float]:
    a, b = inputs.normal(SIDE, SIDE), inputs.normal(SIDE, SIDE)
    bf16_us = time_us([lambda: a @ b.T], launches=4)
    one = torch.ones((), device=inputs.device())
    qa, qb = a.to(inputs.FP8), b.to(inputs.FP8)
    fp8_us = time_us([lambda: torch._scaled_mm(qa, qb.T, one, one, out_dtype=inputs.BF16)], launches=4)
    flops = 2 * SIDE**3
    return flops / bf16_us * 1e6, flops / fp8_us * 1e6
