"""Which instances there should be."""

from collections.abc import Sequence
from typing import Protocol

from common.state.worker_leases import WorkerRecord


class Discovery(Protocol):
    """`common.state.worker_leases.WorkerLeases`, or what stands for it in a test."""

    async def current(self) -> Sequence[WorkerRecord]:
        """All instances with a lease.

        Raises:
            DependencyUnavailable: nobody can say now; what is known stays.
        """
        ...
