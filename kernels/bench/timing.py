"""Timing on the device: CUDA graph replays, rotating inputs, medians, contenders in turns."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

L2_BYTES = 60 << 20
REPLAYS = 9
WARM_REPLAYS = 2

Calls = Sequence[Callable[[], object]]
REST_S = 0.5


def rest() -> None:
    """Let work that soon brings the chip to its power limit start as cool as the last."""
    torch.cuda.synchronize()
    time.sleep(REST_S)


def sets_beyond_l2(bytes_per_set: int) -> int:
    """How many input sets make sure that each call finds its inputs out of L2."""
    return max(1, -(-3 * L2_BYTES // max(bytes_per_set, 1 << 20)))


def capture(calls: Calls, launches: int) -> torch.cuda.CUDAGraph:
    """One graph that makes `launches` calls, cycling through `calls`; each is made once before, to compile it."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def time_us(calls: Calls, *, launches: int | None = None, replays: int = REPLAYS) -> float:
    """Median time of one call over graph replays, in us: kernels and the gaps between them.

    Args:
        calls: the same work on different inputs, enough of them that none is in L2 when its turn comes.
        launches: calls a graph holds; by default at least 8 and every input set once.
        replays: timed replays after two that warm up.
    """
    return statistics.median(times_us({"": calls}, launches=launches, replays=replays)[""])


def times_us(
    contenders: Mapping[str, Calls],
    *,
    launches: int | None = None,
    replays: int = REPLAYS,
    ordered: bool = False,
) -> dict[str, list[float]]:
    """As `time_us` for several ways to do one work: one time a round of each, all of a round measured in turns.

    Each round has an order of its own, so that clocks, heat and what the one before leaves in the caches favour none.

    Args:
        ordered: each call is a graph launch of its own, so that none begins before the last one's end. For libraries
            whose kernels start early without waiting for the one before: in one graph such calls would overlap, which
            no chain of dependent kernels can have.
    """
    counts = {name: launches or max(8, len(calls)) for name, calls in contenders.items()}
    graphs = {name: [capture(calls, counts[name])] for name, calls in contenders.items() if not ordered}
    if ordered:
        graphs = {name: [capture([call], 1) for call in calls] for name, calls in contenders.items()}
    names, order = list(contenders), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(WARM_REPLAYS + replays):
        for name in order.sample(names, len(names)):
            us = _replay_us(graphs[name], counts[name] if ordered else 1) / counts[name]
            if turn >= WARM_REPLAYS:
                times[name].append(us)
    return times


def _replay_us(graphs: Sequence[torch.cuda.CUDAGraph], replays: int) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for i in range(replays):
        graphs[i % len(graphs)].replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3
