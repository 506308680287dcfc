"""Few combinations in which every two values of different factors meet."""

import itertools
import random
from collections.abc import Mapping, Sequence

Case = dict[str, object]


def pairwise(factors: Mapping[str, Sequence[object]], *, seed: int = 0, tries: int = 200) -> list[Case]:
    """A covering design, greedy and repeatable: each case is the best of `tries` that hold an uncovered pair."""
    rng = random.Random(seed)
    open_pairs = {
        ((a, x), (b, y)) for a, b in itertools.combinations(factors, 2) for x in factors[a] for y in factors[b]
    }
    cases: list[Case] = []
    while open_pairs:
        first = min(open_pairs, key=repr)
        candidates = [
            {name: rng.choice(values) for name, values in factors.items()} | dict(first) for _ in range(tries)
        ]
        best = max(candidates, key=lambda case: len(_pairs(case, factors) & open_pairs))
        cases.append(best)
        open_pairs -= _pairs(best, factors)
    return cases


def _pairs(case: Case, factors: Mapping[str, Sequence[object]]) -> set[tuple[tuple[str, object], tuple[str, object]]]:
    return {((a, case[a]), (b, case[b])) for a, b in itertools.combinations(factors, 2)}
