"""What all attempts of this replica share."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from common.errors import Draining, TandemError
from common.rpc.inference_data import CancelOutcome, Explanation
from services.scheduler.fleet import Fleet
from services.scheduler.membership import Membership
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.settings import SchedulerSettings


@dataclass(slots=True)
class Surroundings:
    fleet: Fleet
    membership: Membership
    settings: SchedulerSettings
    metrics: SchedulerMetrics
    background: Callable[["asyncio.Task[None]"], None]  # keeps a task until it is done
    cancel_elsewhere: Callable[[str], Awaitable[CancelOutcome]] | None = None  # a request, by whoever has it
    explain_elsewhere: Callable[[str], Awaitable[Explanation | None]] | None = None  # a request, by whoever served it
    repeat_cancel: Callable[[str], Awaitable[None]] | None = None  # over the bus, when a worker did not answer

    def note_draining(self, error: TandemError, instance: str) -> None:
        """An instance that refuses because it drains says so sooner than the bus does."""
        known = self.fleet.get(instance)
        if isinstance(error, Draining) and known is not None:
            self.membership.drain(instance, known.incarnation)
