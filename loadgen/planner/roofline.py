"""The two ceilings of a kernel: arithmetic and memory (Williams, Waterman, Patterson, 2009)."""

from loadgen.planner.hardware import Hardware
from loadgen.planner.operations import Operation


def compute_us(flops: float, precision: str, gpu: Hardware) -> float:
    """Time of `flops` at the datasheet rate."""
    return flops / gpu.flops_per_s(precision) * 1e6


def memory_us(moved_bytes: float, gpu: Hardware) -> float:
    """Time of `moved_bytes` at the datasheet bandwidth."""
    return moved_bytes / gpu.memory_bytes_per_s.value * 1e6


def roofline_us(operation: Operation, gpu: Hardware) -> float:
    """The time no kernel can beat: the larger of useful FLOPs over rate and bytes over bandwidth."""
    return max(compute_us(operation.flops, operation.precision, gpu), memory_us(operation.bytes, gpu))


def ceiling_flops_per_s(flops_per_byte: float, precision: str, gpu: Hardware) -> float:
    """Highest rate reachable at one intensity."""
    return min(gpu.flops_per_s(precision), flops_per_byte * gpu.memory_bytes_per_s.value)
