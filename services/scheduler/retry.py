"""What follows when an attempt ends early. Pure."""

from dataclasses import dataclass

from common.errors import DependencyUnavailable, Refused, TandemError, TransferError, WorkerLost
from services.scheduler.settings import RetryPolicy


@dataclass(frozen=True, slots=True)
class Setback:
    """An attempt that ended before its choice did."""

    error: TandemError | None  # None: decode preempted the work, nothing is wrong
    begun: bool  # a token was delivered, so only an exact resume is allowed
    failures: int  # attempts in a row without a token, this one included; preemptions and refusals do not count
    waited_s: float  # since the choice last made progress


def retry_pause_s(setback: Setback, policy: RetryPolicy) -> float | None:
    """How long to wait before another attempt; None to give up.

    Before the first token a failed attempt is tried once elsewhere. Afterwards the choice is resumed until it has made
    no progress for several attempts, and waits for capacity as long as `resume_wait_s`.
    """
    error = setback.error
    if error is None:
        return 0.0
    if not isinstance(error, WorkerLost | TransferError | DependencyUnavailable | Refused):
        return None
    if not setback.begun:
        return policy.pause_s if setback.failures <= policy.retries_before_first_token else None
    if setback.waited_s > policy.resume_wait_s:
        return None
    if isinstance(error, Refused):
        return min(1.0, policy.pause_s * 2 ** min(setback.failures, 5))
    if setback.failures >= policy.attempts_without_progress:
        return None
    return 0.0 if setback.failures == 1 else policy.pause_s * 2**setback.failures
