"""A small Nelder-Mead, so that fitting needs nothing beyond numpy and gives the same digits everywhere."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def minimise(
    cost: Callable[[NDArray[np.float64]], float], start: Sequence[float], *, step: float = 0.3, rounds: int = 4000
) -> NDArray[np.float64]:
    """The point near `start` where `cost` is least (Nelder and Mead, 1965; the usual 1, 2, 1/2, 1/2).

    Parameters are searched as given: pass logarithms of quantities that must stay positive. Restarted twice from the
    best point, since a simplex may collapse early.
    """
    best = np.array(start, dtype=np.float64)
    for restart in range(3):
        best = _simplex(cost, best, step / (restart + 1), rounds)
    return best


def _simplex(
    cost: Callable[[NDArray[np.float64]], float], start: NDArray[np.float64], step: float, rounds: int
) -> NDArray[np.float64]:
    n = start.size
    points = np.vstack([start, start + step * np.eye(n)])
    values = np.array([cost(p) for p in points])
    for _ in range(rounds):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        if values[-1] - values[0] <= 1e-12 * (abs(values[0]) + 1e-12):
            break
        centre = points[:-1].mean(axis=0)
        reflected = centre + (centre - points[-1])
        value = cost(reflected)
        if value < values[0]:
            expanded = centre + 2 * (centre - points[-1])
            further = cost(expanded)
            points[-1], values[-1] = (expanded, further) if further < value else (reflected, value)
        elif value < values[-2]:
            points[-1], values[-1] = reflected, value
        else:
            contracted = centre + 0.5 * (points[-1] - centre)
            nearer = cost(contracted)
            if nearer < values[-1]:
                points[-1], values[-1] = contracted, nearer
            else:
                points[1:] = points[0] + 0.5 * (points[1:] - points[0])
                values[1:] = [cost(p) for p in points[1:]]
    return points[int(np.argmin(values))]
