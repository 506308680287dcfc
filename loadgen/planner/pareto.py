"""The front of throughput against output speed, and how two fronts compare."""

from collections.abc import Iterable, Sequence

import numpy as np

from loadgen.planner.deployment import DecodePoint


def pareto_front(points: Iterable[DecodePoint]) -> list[DecodePoint]:
    """Points that no other beats in both output speed and node throughput, fastest first."""
    front: list[DecodePoint] = []
    for point in sorted(points, key=lambda p: (-p.output_tokens_per_s, -p.node_tokens_per_s)):
        if not front or point.node_tokens_per_s > front[-1].node_tokens_per_s:
            front.append(point)
    return front


def throughput_at(front: Sequence[DecodePoint], speed: float) -> float:
    """Node throughput on a front at one output speed, log-linear between its points; 0 beyond its fastest."""
    speeds = [p.output_tokens_per_s for p in reversed(front)]
    if not speeds or speed > speeds[-1]:
        return 0.0
    logs = [float(np.log(p.node_tokens_per_s)) for p in reversed(front)]
    return float(np.exp(np.interp(speed, speeds, logs)))


def largest_ratio(
    over: Sequence[DecodePoint], under: Sequence[DecodePoint], speeds: Iterable[float]
) -> tuple[float, float]:
    """(ratio, speed) where `over` gains most on `under` among speeds that both reach."""
    best = (0.0, 0.0)
    for speed in speeds:
        below = throughput_at(under, speed)
        if below:
            best = max(best, (throughput_at(over, speed) / below, speed))
    return best
