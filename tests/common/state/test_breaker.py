from common.clock import ManualClock
from common.state.breaker import Breaker


def test_opens_after_failures_in_a_row_and_lets_one_trial_through():
    clock = ManualClock()
    breaker = Breaker(clock, failures_to_open=3, open_s=1.0)
    for _ in range(2):
        assert breaker.admit()
        breaker.failed()
    breaker.succeeded()
    for _ in range(3):
        assert breaker.admit()
        breaker.failed()
    assert breaker.open
    assert not breaker.admit()
    clock.advance(1.0)
    assert breaker.admit()
    assert not breaker.admit()  # one trial at a time
    breaker.failed()
    assert not breaker.admit()
    clock.advance(1.0)
    assert breaker.admit()
    breaker.succeeded()
    assert not breaker.open
    assert breaker.admit()
