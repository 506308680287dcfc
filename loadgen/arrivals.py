"""When requests are sent: offsets in seconds from the start, fixed before the run (an open loop)."""

from collections.abc import Sequence
from math import inf

import numpy as np

from common.errors import InvalidInput


def poisson(rate_per_s: float, count: int, seed: int) -> list[float]:
    """`count` arrivals of a Poisson process; the first is at 0."""
    return gamma(rate_per_s, count, 1.0, seed)


def gamma(rate_per_s: float, count: int, cv: float, seed: int) -> list[float]:
    """Gaps of mean 1 / rate and coefficient of variation `cv`: 0 is a metronome, 1 Poisson, above 1 bursts."""
    if not 0 < rate_per_s < inf:
        raise InvalidInput("rate", rate_per_s, "a finite number of requests per second above 0")
    if not 0 <= cv < inf:
        raise InvalidInput("cv", cv, "a finite number, at least 0")
    gaps = np.full(max(count - 1, 0), 1.0 / rate_per_s)
    if cv > 0:
        shape = 1.0 / cv**2
        gaps = np.random.default_rng(seed).gamma(shape, 1.0 / (rate_per_s * shape), max(count - 1, 0))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def replay(recorded_s: Sequence[float], speed: float) -> list[float]:
    """A trace's own times from its first arrival on, `speed` times as fast."""
    if not 0 < speed < inf:
        raise InvalidInput("speed", speed, "a finite number above 0")
    first = recorded_s[0] if recorded_s else 0.0
    return [(at - first) / speed for at in recorded_s]
