import pytest

from common.engine.prefill_rate import PrefillRate
from common.parallel.waits import run
from tests.fakes.engines import MakePair, make_work, prompt


def test_tokens_over_the_time_of_the_steps_that_computed_them() -> None:
    rate = PrefillRate(half_life_s=1e9)
    assert rate.tokens_per_s == 0.0
    rate.add(512, 0.5)
    rate.add(100, 0.25)
    assert rate.tokens_per_s == pytest.approx(612 / 0.75)
    rate.reset()
    assert rate.tokens_per_s == 0.0


def test_evidence_halves_with_busy_time() -> None:
    rate = PrefillRate(half_life_s=10.0)
    rate.add(1000, 10.0)
    rate.add(4000, 10.0)
    assert rate.tokens_per_s == pytest.approx((500 + 4000) / (5 + 10))
    for _ in range(200):
        rate.add(700, 1.0)
    assert rate.tokens_per_s == pytest.approx(700, rel=1e-3)


def test_an_engine_reports_its_own(make_pair: MakePair) -> None:
    pair = make_pair(chunk=16)
    assert pair.prefill.load().tokens_per_s == 0.0
    pair.prefill.early = lambda _events: pair.clock.advance(0.5)  # before the step, and at its first token
    pair.prefill.submit(make_work(prompt(16), 1), False)
    run(pair.prefill.step())
    assert pair.prefill.load().tokens_per_s == pytest.approx(16 / 0.5)
