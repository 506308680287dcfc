"""What follows when an attempt ends early."""

import pytest

from common.errors import (
    Cancelled,
    DeadlineExceeded,
    DependencyUnavailable,
    Draining,
    Incompatible,
    InternalError,
    InvalidInput,
    NoInstance,
    Overloaded,
    TagMismatch,
    WorkerLost,
)
from services.scheduler.retry import Setback, retry_pause_s
from services.scheduler.settings import RetryPolicy

POLICY = RetryPolicy(retries_before_first_token=1, attempts_without_progress=3, resume_wait_s=10.0, pause_s=0.1)
TEMPORARY = [WorkerLost("x"), DependencyUnavailable("x"), TagMismatch("x"), Overloaded("x", 1.0), Draining("x")]
FINAL = [InvalidInput("a", 1, "b"), Cancelled("x"), DeadlineExceeded("x"), Incompatible("a", 1, 2), InternalError("x")]


@pytest.mark.parametrize("error", TEMPORARY, ids=lambda error: error.reason)
def test_once_elsewhere_before_the_first_token(error):
    assert retry_pause_s(Setback(error, begun=False, failures=1, waited_s=0.0), POLICY) is not None
    assert retry_pause_s(Setback(error, begun=False, failures=2, waited_s=0.0), POLICY) is None


@pytest.mark.parametrize("error", FINAL, ids=lambda error: error.reason)
@pytest.mark.parametrize("begun", [False, True])
def test_what_no_other_instance_can_help(error, begun):
    assert retry_pause_s(Setback(error, begun, 1, 0.0), POLICY) is None


def test_a_begun_choice_is_resumed_at_once_and_then_more_slowly():
    lost = WorkerLost("x")
    assert retry_pause_s(Setback(lost, True, 1, 0.0), POLICY) == 0.0
    assert retry_pause_s(Setback(lost, True, 2, 0.0), POLICY) == pytest.approx(0.4)
    assert retry_pause_s(Setback(lost, True, 3, 0.0), POLICY) is None


def test_a_begun_choice_waits_for_capacity_within_its_bound():
    refused = NoInstance("no decode instance is ready", 1.0)
    assert retry_pause_s(Setback(refused, True, 0, 9.0), POLICY) == pytest.approx(0.1)
    assert retry_pause_s(Setback(refused, True, 0, 10.5), POLICY) is None


def test_preemption_never_gives_up():
    assert retry_pause_s(Setback(None, True, 99, 99.0), POLICY) == 0.0
