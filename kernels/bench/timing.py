"""Timing on the device: CUDA graph replays, rotating inputs, medians."""

import statistics
from collections.abc import Callable, Sequence

import torch

L2_BYTES = 60 << 20


def sets_beyond_l2(bytes_per_set: int) -> int:
    """How many input sets make sure that each call finds its inputs out of L2."""
    return max(1, -(-3 * L2_BYTES // max(bytes_per_set, 1 << 20)))


def capture(calls: Sequence[Callable[[], object]], launches: int) -> torch.cuda.CUDAGraph:
    """One graph that makes `launches` calls, cycling through `calls`; each is made once before, to compile it."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def time_us(calls: Sequence[Callable[[], object]], *, launches: int | None = None, replays: int = 9) -> float:
    """Median time of one call over graph replays, in us: kernels and the gaps between them.

    Args:
        calls: the same work on different inputs, enough of them that none is in L2 when its turn comes.
        launches: calls a graph holds; by default at least 8 and every input set once.
        replays: timed replays after two that warm up.
    """
    count = launches or max(8, len(calls))
    graph = capture(calls, count)
    for _ in range(2):
        graph.replay()
    times = []
    for _ in range(replays):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / count)
    return statistics.median(times)


def time_ordered_us(call: Callable[[], object], *, launches: int = 4, replays: int = 9) -> float:
    """As `time_us`, each call in a graph launch of its own, so that none begins before the last one's end.

    For libraries whose kernels start early without waiting for the one before: in one graph such calls would overlap,
    which no chain of dependent kernels can have.
    """
    graph = capture([call], 1)
    for _ in range(2):
        graph.replay()
    times = []
    for _ in range(replays):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(launches):
            graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / launches)
    return statistics.median(times)
