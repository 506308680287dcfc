"""What may happen to an attempt."""

from dataclasses import dataclass

from common.errors import TandemError
from common.rpc.worker_data import PrefillFirstToken, PrefillStarted, WorkEvent


@dataclass(frozen=True, slots=True)
class PrefillEnded:
    """Its stream is over; `error` says why when it should not be."""

    error: TandemError | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A decode instance answered; with an error it did not take the work."""

    instance: str
    error: TandemError | None


@dataclass(frozen=True, slots=True)
class HandoffLost:
    """Prefill is gone and decode has not said within its grace that it has everything."""

    error: TandemError


AttemptEvent = PrefillStarted | PrefillFirstToken | PrefillEnded | Admitted | HandoffLost | WorkEvent
