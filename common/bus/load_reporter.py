"""An instance's load reports, numbered."""

from collections.abc import Mapping

from common.bus.connection import Bus
from common.bus.messages import LoadReport
from common.bus.subjects import Subjects


class LoadReporter:
    """Reports of one incarnation of one instance; numbers grow by one whether or not a report gets out."""

    def __init__(self, bus: Bus, subjects: Subjects, instance: str, incarnation: int) -> None:
        self._bus = bus
        self._subject = subjects.load(instance)
        self._instance = instance
        self._incarnation = incarnation
        self._sequence = 0

    async def report(self, load: Mapping[str, float]) -> bool:
        """Tell the load now; False when there is no connection."""
        self._sequence += 1
        return await self._bus.publish(
            self._subject, LoadReport(self._instance, self._incarnation, self._sequence, dict(load))
        )
