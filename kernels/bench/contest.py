"""Our kernel and the libraries that do the same work, measured in turns."""

import statistics
from collections.abc import Iterator, Mapping

from kernels.bench.record import Limits, Ratio, Result, Work, result
from kernels.bench.timing import Calls, times_us

OURS = "tandem"
ROUNDS = 21  # of each contender; quartiles of their ratios are among them


def contest(
    op: str,
    shape: Mapping[str, int | str],
    work: Work,
    limits: Limits,
    ours: Calls,
    libraries: Mapping[str, Calls],
    *,
    target_us: float | None = None,
    launches: int | None = None,
    ordered: bool = False,
    rounds: int = ROUNDS,
) -> Iterator[Result]:
    """One result a library, then ours with its ratio to each, over rounds in which all ran in turns.

    Args:
        ours: what our launcher chooses, which may be a library's kernel.
        launches, ordered, rounds: as `timing.times_us`.
    """
    times = times_us({**libraries, OURS: ours}, launches=launches, replays=rounds, ordered=ordered)
    medians = {name: statistics.median(us) for name, us in times.items()}
    for name in libraries:
        yield result(op, name, shape, medians[name], work, limits)
    yield result(
        op, OURS, shape, medians[OURS], work, limits,
        target_us=target_us,
        baseline={name: medians[name] for name in libraries},
        ratio={name: ratio(times[OURS], times[name]) for name in libraries},
    )  # fmt: skip


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """Our time over theirs, round by round: the quartiles."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return Ratio(round(low, 4), round(middle, 4), round(high, 4))
