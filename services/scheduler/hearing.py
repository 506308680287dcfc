"""What workers say on the bus, into the fleet. All of it is hints."""

from dataclasses import MISSING, fields

from common.bus.connection import Bus
from common.bus.messages import DrainNotice, HoldNotice, LoadReport
from common.bus.sequence_gate import SequenceGate
from common.bus.subjects import Subjects
from common.engine.events import EngineLoad
from common.telemetry.logs import get_log
from services.scheduler.fleet import Fleet
from services.scheduler.membership import Membership
from services.scheduler.metrics import SchedulerMetrics

log = get_log(__name__)


class Hearing:
    """Of each instance only the latest load counts, whatever the bus repeats or reorders."""

    def __init__(self, fleet: Fleet, membership: Membership, metrics: SchedulerMetrics) -> None:
        self._fleet = fleet
        self._membership = membership
        self._gate = SequenceGate(metrics.load_reports_missed.inc, metrics.load_reports_refused.inc)

    async def begin(self, bus: Bus, subjects: Subjects) -> None:
        """
        Raises:
            DependencyUnavailable: the connection is closed.
        """
        await bus.subscribe(subjects.all_loads, LoadReport, self.hear_load)
        await bus.subscribe(subjects.all_drains, DrainNotice, self.hear_drain)
        await bus.subscribe(subjects.all_holds, HoldNotice, self.hear_hold)

    def hear_load(self, report: LoadReport) -> None:
        known = self._fleet.get(report.instance)
        if known is None or known.incarnation != report.incarnation:
            return  # not joined yet, or about memory that is gone
        if self._gate.admit(report.instance, report.incarnation, report.sequence):
            load = engine_load(report)
            if load is not None:
                self._fleet.report(report.instance, report.incarnation, load)

    def hear_drain(self, notice: DrainNotice) -> None:
        self._membership.drain(notice.instance, notice.incarnation)

    def hear_hold(self, notice: HoldNotice) -> None:
        self._membership.hold(notice.instance, notice.incarnation, notice.hold_s)


def engine_load(report: LoadReport) -> EngineLoad | None:
    """None when a number is missing, as from a version that counts otherwise."""
    missing = [one.name for one in fields(EngineLoad) if one.default is MISSING and one.name not in report.load]
    if missing:
        log.warning("load report incomplete", instance=report.instance, missing=missing)
        return None
    load = report.load
    return EngineLoad(
        queued_tokens=int(load["queued_tokens"]),
        queued=int(load["queued"]),
        running=int(load["running"]),
        running_tokens=int(load["running_tokens"]),
        free_blocks=int(load["free_blocks"]),
        total_blocks=int(load["total_blocks"]),
        step_s=load["step_s"],
        tokens_per_s=load.get("tokens_per_s", 0.0),
    )
