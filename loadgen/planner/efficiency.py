"""From a kernel's work to its time: the roofline, softened, plus what no roofline shows.

    t = fixed + per_k * K / 1024 + wave * tiles / SMs + (tc^p + tm^p)^(1/p)
    tc = padded FLOPs / (compute * datasheet rate * sustained)  *  (1 + half_length / length)
    tm = bytes / (memory * achieved bandwidth)

`fixed` is the head and tail of a kernel, `per_k` the latency of the serial loop over K that too few tiles cannot
hide, `wave` the epilogue of each wave of tiles. The p-norm with p = 3 is the larger of the two times where they
differ and 26 % more where they are equal: loads and tensor-core work overlap, but not perfectly. Every term is
non-negative and `compute`, `memory` are shares below one, so no time is below the datasheet roofline and none falls
when FLOPs or bytes grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.planner.hardware import Hardware
from loadgen.planner.operations import KernelClass, Operation

SHARPNESS = 3.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Efficiency of one kernel class of one library.

    Attributes:
        fixed_us: head and tail of a kernel.
        floor_us: the same for next to no work, where it is known to shrink: a tail is never longer than the work, so
            fixed = min(fixed_us, floor_us + work). Zero means that it does not shrink.
        per_k_us: latency for each 1,024 of the reduction length.
        wave_us: for each wave of 128 x 128 tiles over the multiprocessors.
        whole_tiles: whether rows are padded to tiles; a kernel with swapped operands or split K computes what is asked.
        compute: share of the datasheet FLOP rate at boost clocks.
        memory: share of the bandwidth that the hardware entry calls achieved.
        half_length: sequence length at which half of `compute` is reached (attention over prompts).
        residual: root mean square of the relative errors on the points left out of the fit.
    """

    fixed_us: float = 0.0
    floor_us: float = 0.0
    per_k_us: float = 0.0
    wave_us: float = 0.0
    whole_tiles: bool = True
    compute: float = 1.0
    memory: float = 1.0
    half_length: float = 0.0
    residual: float = 0.1


def kernel_us(operation: Operation, gpu: Hardware, curve: Curve, sustained: float = 1.0) -> float:
    """Time of one kernel on `gpu`; `sustained` scales FP8 tensor-core rates to the clocks of a long run."""
    if operation.kernel is KernelClass.COLLECTIVE:
        link = gpu.nvlink_achieved_bytes_per_s.value * curve.memory
        return curve.fixed_us + operation.link_bytes / link * 1e6
    work = soft_max(*_roofs_us(operation, gpu, curve, sustained))
    fixed = min(curve.fixed_us, curve.floor_us + work) if curve.floor_us else curve.fixed_us
    serial = fixed + curve.per_k_us * operation.depth / 1024 + curve.wave_us * operation.tiles / gpu.sms
    return serial + work


def fastest_us(operation: Operation, gpu: Hardware, curves: Sequence[Curve], sustained: float = 1.0) -> float:
    """The best of several kernels for one class: a library picks by shape."""
    return min(kernel_us(operation, gpu, curve, sustained) for curve in curves)


def bound(operation: Operation, gpu: Hardware, curves: Sequence[Curve], sustained: float = 1.0) -> str:
    """What most of a kernel's time is: compute, memory, nvlink, or latency (everything that is none of these)."""
    if operation.kernel is KernelClass.COLLECTIVE:
        return "nvlink"
    curve = min(curves, key=lambda c: kernel_us(operation, gpu, c, sustained))
    tc, tm = _roofs_us(operation, gpu, curve, sustained)
    latency = kernel_us(operation, gpu, curve, sustained) - soft_max(tc, tm)
    return max((tc, "compute"), (tm, "memory"), (latency, "latency"))[1]


def soft_max(a: float, b: float) -> float:
    """(a^p + b^p)^(1/p), without overflow."""
    top = max(a, b)
    if top <= 0:
        return 0.0
    return top * float(((a / top) ** SHARPNESS + (b / top) ** SHARPNESS) ** (1 / SHARPNESS))


def _roofs_us(operation: Operation, gpu: Hardware, curve: Curve, sustained: float) -> tuple[float, float]:
    """(tc, tm) of the formula above."""
    rate = gpu.flops_per_s(operation.precision) * curve.compute * _clocks(operation, sustained)
    flops = max(operation.padded_flops, operation.flops) if curve.whole_tiles else operation.flops
    tc = flops / rate * 1e6
    if curve.half_length and operation.length:
        tc *= 1 + curve.half_length / operation.length
    return tc, operation.bytes / (gpu.memory_achieved_bytes_per_s.value * curve.memory) * 1e6


def _clocks(operation: Operation, sustained: float) -> float:
    """FP8 tables come from short bursts at boost clocks; the attention kernels were timed in long loops already."""
    return sustained if operation.precision == "fp8" else 1.0
