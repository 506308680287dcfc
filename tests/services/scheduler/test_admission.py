"""Who goes, who waits and who is shed."""

from dataclasses import replace
from math import inf

import pytest

from common.errors import Overloaded
from services.scheduler.admission import Backlog, admit, may_dispatch, predicted_wait_s
from services.scheduler.placement import DecodeState, PrefillState
from services.scheduler.settings import AdmissionPolicy

POLICY = AdmissionPolicy(max_live=100, max_waiting=10, max_wait_s=5.0, dispatch_ahead_s=0.5, dispatch_works=3)
NOTHING = Backlog(0, 0, 0.0, 0.0, 0, 0, inf, 0.0, 0.0, 0.0)


def backlog(**changes):
    return replace(NOTHING, **changes)


def prefill(queued=0.0, works=10):
    return [PrefillState("p", "p", queued, 1000.0, 100, works=works)]


def decode(sequences=0, max_running=8):
    return [DecodeState("d", "d", sequences, 0.0, 100, 100, max_running)]


def test_the_gate_opens_while_prefill_runs_low_and_decode_has_seats():
    assert may_dispatch(prefill(500), decode(7), NOTHING, POLICY)
    assert not may_dispatch(prefill(501), decode(), NOTHING, POLICY)
    assert not may_dispatch(prefill(), decode(8), NOTHING, POLICY)
    assert not may_dispatch(prefill(), decode(6), backlog(unplaced=2), POLICY)
    assert not may_dispatch(prefill(), decode(6), backlog(unplaced=1, on_the_way=1), POLICY)
    assert not may_dispatch(prefill(300), decode(), backlog(unplaced_tokens=300), POLICY)
    assert may_dispatch(prefill(90_000, works=2), decode(), NOTHING, POLICY)  # two long prompts keep no short one out
    assert not may_dispatch(prefill(90_000, works=2), decode(), backlog(unplaced=1), POLICY)
    assert not may_dispatch([], decode(), NOTHING, POLICY)
    assert not may_dispatch(prefill(), [], NOTHING, POLICY)


def test_the_wait_is_that_of_the_slower_side():
    assert predicted_wait_s(prefill(2000), decode(), backlog(waiting_tokens=1000)) == 3.0
    assert predicted_wait_s(prefill(2000), decode(), backlog(waiting_tokens=1000, tokens_per_s=100.0)) == 12.0
    assert predicted_wait_s(prefill(2000), decode(), backlog(waiting_tokens=1000, tokens_per_s=5000.0)) == 3.0
    full = backlog(waiting=3, residence_s=4.0)
    assert predicted_wait_s(prefill(), decode(8), full) == 2.0
    assert predicted_wait_s(prefill(), decode(0), full) == 0.0


def test_shedding_is_immediate_and_says_when_to_come_back():
    with pytest.raises(Overloaded) as caught:
        admit(10, None, prefill(7000), decode(), NOTHING, POLICY)
    assert caught.value.retry_after_s == pytest.approx(7.0)
    with pytest.raises(Overloaded, match="10 requests wait"):
        admit(10, None, prefill(), decode(), backlog(waiting=10), POLICY)
    with pytest.raises(Overloaded, match="100 live"):
        admit(10, None, prefill(), decode(), backlog(live=100), POLICY)
    assert admit(10, None, prefill(), decode(), NOTHING, POLICY)


def test_a_deadline_that_cannot_be_met_is_not_begun():
    with pytest.raises(Overloaded, match="deadline"):
        admit(10, 1.0, prefill(2000), decode(), NOTHING, POLICY)
    assert admit(10, 3.0, prefill(2000), decode(), NOTHING, POLICY)


def test_when_full_the_tenant_that_waits_most_gives_way():
    crowded = backlog(waiting=10, fullest_tenant_waiting=8.0, tenant_waiting=2.0)
    assert not admit(10, None, prefill(), decode(), crowded, POLICY)
    with pytest.raises(Overloaded):
        admit(
            10, None, prefill(), decode(), backlog(waiting=10, fullest_tenant_waiting=8.0, tenant_waiting=8.0), POLICY
        )
