import numpy as np
import pytest

from common.errors import InvalidInput
from loadgen.arrivals import gamma, poisson, replay


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    gaps = np.diff(poisson(4.0, 40_001, seed=1))
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() == pytest.approx(0.25, rel=0.02)
    # P(gap > 1 / rate) = 1 / e
    assert (gaps > 0.25).mean() == pytest.approx(np.exp(-1), rel=0.03)


@pytest.mark.parametrize("cv", [0.0, 0.5, 3.0])
def test_gamma_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    gaps = np.diff(gamma(10.0, 100_001, cv, seed=2))
    assert gaps.mean() == pytest.approx(0.1, rel=0.03)
    assert gaps.std() == pytest.approx(0.1 * cv, rel=0.05, abs=1e-9)


def test_a_seed_fixes_the_schedule() -> None:
    assert poisson(1.0, 50, seed=7) == poisson(1.0, 50, seed=7)
    assert poisson(1.0, 50, seed=7) != poisson(1.0, 50, seed=8)
    assert poisson(1.0, 1, seed=7) == [0.0]
    assert poisson(1.0, 0, seed=7) == []


def test_replay_keeps_the_gaps_and_divides_them_by_the_speed() -> None:
    assert replay([5.0, 6.0, 9.0], speed=2.0) == [0.0, 0.5, 2.0]


def test_impossible_processes_are_refused() -> None:
    for call in (lambda: poisson(0.0, 3, 0), lambda: gamma(1.0, 3, -0.1, 0), lambda: replay([0.0], 0.0)):
        with pytest.raises(InvalidInput):
            call()
