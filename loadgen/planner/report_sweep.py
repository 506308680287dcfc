"""The report's throughput figure: EP8 on one H200 node, EP16 to EP128 on H100s, TP 1 to 8, batch 1 to 128."""

from loadgen.planner.deployment import DecodePlan, DecodePoint, sweep
from loadgen.planner.hardware import hardware
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.pareto import largest_ratio, pareto_front
from loadgen.planner.report_points import ACCEPTANCE, BATCHES, CACHED, DRAFTS, EPS, TPS
from loadgen.planner.stacks import Stack

# The report compares "from 80 down to 40 tokens/s"; both fronts are read at every whole speed in between.
COMPARED_SPEEDS = tuple(range(40, 81))


def report_sweep(stack: Stack) -> dict[int, list[DecodePoint]]:
    """All points by EP; each takes the schedule that is fastest there."""
    found: dict[int, list[DecodePoint]] = {}
    for ep in EPS:
        plan = DecodePlan(
            model_shape("deepseek-v3"),
            hardware("h200" if ep == 8 else "h100"),
            stack,
            cached_tokens=CACHED,
            draft_tokens=DRAFTS,
            acceptance=ACCEPTANCE,
        )
        found[ep], _ = sweep(plan, eps=(ep,), tps=TPS, batches=BATCHES)
    return found


def speedup(points: dict[int, list[DecodePoint]]) -> tuple[float, float]:
    """(ratio, speed): the most that EP128 gains over one node at equal output speed; the report says up to 5 times."""
    return largest_ratio(pareto_front(points[128]), pareto_front(points[8]), COMPARED_SPEEDS)
