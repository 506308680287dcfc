"""The report's latency breakdown, predicted: the same four configurations, the same quantities."""

from loadgen.planner.hardware import hardware
from loadgen.planner.layer import LayerTime, Parallelism, decode_layer
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.operations import KernelClass
from loadgen.planner.report_points import BATCH, CACHED, QUERY
from loadgen.planner.schedule import Schedule
from loadgen.planner.stacks import Stack

CONFIGURATIONS = {
    "EP8": (8, Schedule.NONE),
    "EP128 none": (128, Schedule.NONE),
    "EP128 dispatch overlap": (128, Schedule.DISPATCH_OVERLAP),
    "EP128 dual microbatch": (128, Schedule.DUAL_MICROBATCH),
}


def report_layer(stack: Stack, ep: int, schedule: Schedule, batch: int = BATCH) -> LayerTime:
    """One layer as the report measures it: H100, TP1. EP8 does not fit in memory there; one layer does."""
    return decode_layer(
        model_shape("deepseek-v3"),
        hardware("h100"),
        stack,
        Parallelism(ep),
        batch=batch,
        query_tokens=QUERY,
        cached_tokens=CACHED,
        schedule=schedule,
    )


def report_breakdown(stack: Stack) -> dict[str, LayerTime]:
    """The four bars of the report's latency figure."""
    return {name: report_layer(stack, ep, schedule) for name, (ep, schedule) in CONFIGURATIONS.items()}


def predicted_quantities(stack: Stack) -> dict[str, float]:
    """Every quantity of `REPORT_POINTS` and `DERIVED_POINTS` that one layer shows, by key."""
    ep8, none, overlap, dual = report_breakdown(stack).values()
    grouped, gemm = KernelClass.GROUPED_GEMM.value, KernelClass.GEMM.value
    return {
        "ep8_total": ep8.total_us,
        "none_total": none.total_us,
        "overlap_total": overlap.total_us,
        "dual_total": dual.total_us,
        "none_dispatch": none.dispatch_us,
        "dual_dispatch": dual.dispatch_us,
        "none_combine": none.combine_us,
        "dual_combine": dual.combine_us,
        "ep8_grouped": ep8.kernels_us[grouped],
        "dual_grouped": dual.kernels_us[grouped],
        "none_grouped": none.kernels_us[grouped],
        "ep8_exchange": ep8.dispatch_us + ep8.combine_us,
        "other": ep8.total_us - ep8.kernels_us[grouped] - ep8.dispatch_us - ep8.combine_us,
        "gemm_growth": dual.kernels_us[gemm] - none.kernels_us[gemm],
        "overlap_saves": none.total_us - overlap.total_us,
    }


def microbatch_gain(stack: Stack, batch: int, ep: int = 128) -> float:
    """Share of the layer's time saved by two microbatches over dispatch overlap; negative when they lose.

    The report's own measure: 2667 -> 1896 is "a speed-up of 29 %".
    """
    overlap = report_layer(stack, ep, Schedule.DISPATCH_OVERLAP, batch).total_us
    return 1 - report_layer(stack, ep, Schedule.DUAL_MICROBATCH, batch).total_us / overlap
