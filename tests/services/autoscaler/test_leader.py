"""One leader at a time, whatever becomes of the others and of the API server."""

import pytest

from common.clock import ManualClock
from common.config.autoscaler import AutoscalerConfig
from common.errors import DependencyUnavailable
from services.autoscaler.leader import Leadership

CONFIG = AutoscalerConfig()  # 15 s, renewed every 5 s, calls of 5 s


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def pair(api, clock):
    return [Leadership(api, name, CONFIG, clock) for name in ("a", "b")]


def holder(kubernetes):
    return kubernetes.get("leases", CONFIG.lease_name)["spec"]["holderIdentity"]


def test_the_first_leads_and_goes_on(kubernetes, clock, pair):
    first, second = pair
    for _ in range(10):
        first.step()
        second.step()
        assert (first.leads(), second.leads()) == (True, False)
        clock.advance(5.0)
    spec = kubernetes.get("leases", CONFIG.lease_name)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("a", 0, 15)
    assert spec["renewTime"] > spec["acquireTime"]


def test_a_silent_leader_stops_before_another_begins(kubernetes, clock, pair):
    first, second = pair
    first.step()
    second.step()
    led_together = []
    for _ in range(40):
        clock.advance(0.5)
        second.step()
        led_together.append((first.leads(), second.leads()))
    assert (True, True) not in led_together
    assert led_together[18] == (True, False)  # 9.5 s
    assert led_together[19] == (False, False)  # 10 s: its last calls may still be under way
    assert led_together[-1] == (False, True)
    assert holder(kubernetes) == "b"
    first.step()
    assert not first.leads()
    assert kubernetes.get("leases", CONFIG.lease_name)["spec"]["leaseTransitions"] == 1


def test_whoever_writes_first_leads(kubernetes, clock, pair):
    first, second = pair
    first.step()
    clock.advance(20.0)
    second.step()
    clock.advance(20.0)
    raced = []

    def race(_path):
        if not raced:
            raced.append(True)
            first.step()

    kubernetes.before_write = race
    second.step()  # sees it lapsed, but the old leader renews between its read and its write
    assert (first.leads(), second.leads()) == (True, False)
    assert holder(kubernetes) == "a"


def test_resigning_lets_the_next_begin_at_once(kubernetes, clock, pair):
    first, second = pair
    first.step()
    second.step()
    first.resign()
    assert not first.leads()
    second.step()
    assert second.leads()
    first.resign()  # nothing of its own any more
    clock.advance(30.0)
    first.step()
    assert not first.leads()
    assert holder(kubernetes) == "b"


def test_errors_of_the_server_cost_the_lead_only_with_time(kubernetes, clock, pair):
    first, _ = pair
    first.step()
    kubernetes.fail(500, 2)
    for _ in range(2):
        clock.advance(4.0)
        with pytest.raises(DependencyUnavailable):
            first.step()
        assert first.leads()
    clock.advance(2.0)
    assert not first.leads()
    first.step()
    assert first.leads()
