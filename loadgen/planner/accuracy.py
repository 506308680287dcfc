"""How far off the model is: every published and measured number beside the prediction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadgen.planner.fit import Constants, residuals
from loadgen.planner.kernel_fit import Residual
from loadgen.planner.measured import MeasuredCheck
from loadgen.planner.our_measurements import MACHINE, composite_residuals
from loadgen.planner.report_layers import microbatch_gain, predicted_quantities
from loadgen.planner.report_points import DERIVED_POINTS, GAIN_BATCHES, REPORT_POINTS, ReportPoint
from loadgen.planner.report_sweep import report_sweep, speedup
from loadgen.planner.section import Cell, Section
from loadgen.planner.system_points import system_points

REPORT_TOLERANCE, TABLE_TOLERANCE, SYSTEM_TOLERANCE = 0.10, 0.15, 0.25
# The report's bounds on what two microbatches save, below and from batch 32 on.
GAIN_BELOW_32, GAIN_FROM_32 = (-0.40, -0.05), (0.10, 0.35)


@dataclass(frozen=True, slots=True)
class ReportError:
    """One number of the report beside ours."""

    point: ReportPoint
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.point.value - 1


def report_errors(constants: Constants) -> list[ReportError]:
    """The eleven numbers."""
    stack = constants.stack("report-2025")
    predicted = predicted_quantities(stack)
    predicted["speedup"], _ = speedup(report_sweep(stack))
    return [ReportError(point, predicted[point.key]) for point in REPORT_POINTS]


def accuracy_sections(constants: Constants, measured: MeasuredCheck | None = None) -> list[Section]:
    """All error tables."""
    sections = [
        _report(report_errors(constants)),
        _derived(constants),
        _gains(constants),
        _systems(constants),
        _libraries(residuals(constants)),
        _ours(constants),
        _machine(),
        _left_out(residuals(constants)),
    ]
    if measured and measured.residuals:
        note = f"Not modelled: {', '.join(measured.not_modelled)}." if measured.not_modelled else ""
        rows = tuple((r.library, r.what, r.known_us, r.predicted_us, r.error) for r in measured.residuals)
        columns = ("backend", "kernel", "measured us", "predicted us", "error")
        sections.append(Section("The repository's own bench", columns, rows, ("", "", ".1f", ".1f", "+.1%"), note))
    return sections


def _report(errors: Sequence[ReportError]) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (
            e.point.what,
            e.point.unit,
            e.point.value,
            round(e.predicted, 2),
            e.error,
            "fitted" if e.point.fit else "checked",
        )
        for e in errors
    ]
    note = "Tolerance 10 %. Five of eleven are fitted."
    columns = ("report, H100, batch 128, query 2, 5,000 cached", "unit", "report", "planner", "error", "use")
    return Section("The reference report", columns, tuple(rows), ("", "", ",.4g", ",.4g", "+.1%", ""), note)


def _derived(constants: Constants) -> Section:
    predicted = predicted_quantities(constants.stack("report-2025"))
    rows = tuple((p.what, p.value, predicted[p.key], predicted[p.key] / p.value - 1) for p in DERIVED_POINTS)
    note = "By subtraction from the report's sentences; never fitted, no tolerance. See what the model cannot explain."
    return Section(
        "What follows from the report's numbers", ("us", "report", "planner", "error"), rows,
        ("", ",.4g", ",.4g", "+.1%"), note,
    )  # fmt: skip


def _gains(constants: Constants) -> Section:
    stack = constants.stack("report-2025")
    rows = []
    for batch in GAIN_BATCHES:
        low, high = GAIN_BELOW_32 if batch < 32 else GAIN_FROM_32
        gain = microbatch_gain(stack, batch)
        rows.append((batch, f"{low:+.0%} to {high:+.0%}", gain, low <= gain <= high))
    return Section(
        "Two microbatches against dispatch overlap, EP128",
        ("batch a GPU", "report", "time saved", "inside"),
        tuple(rows),
        ("", "", "+.1%", ""),
    )


def _systems(constants: Constants) -> Section:
    rows = tuple(
        (p.what, p.conditions, p.known, round(p.predicted), p.error, p.must_hold)
        for p in system_points(constants.stack("deepep-2025"))
    )
    return Section(
        "Whole systems, tokens/s a node of eight",
        ("system", "conditions", "published", "planner", "error", "held to 25 %"),
        rows,
        ("", "", ",.0f", ",.0f", "+.1%", ""),
        "None of these is fitted.",
    )


def _libraries(rows: Sequence[Residual]) -> Section:
    names = list(dict.fromkeys(r.library for r in rows))
    table: list[tuple[Cell, ...]] = []
    for name in names:
        mine = [r for r in rows if r.library == name and not r.excluded]
        fitted, checked = [r for r in mine if r.fit], [r for r in mine if not r.fit]
        excluded = sum(1 for r in rows if r.library == name and r.excluded)
        table.append((name, len(fitted), _worst(fitted), len(checked), _worst(checked), excluded))
    table.append(
        (
            "all",
            sum(1 for r in rows if r.fit and not r.excluded),
            _worst(r for r in rows if r.fit and not r.excluded),
            sum(1 for r in rows if not r.fit and not r.excluded),
            _worst(r for r in rows if not r.fit and not r.excluded),
            sum(1 for r in rows if r.excluded),
        )
    )
    columns = ("table", "fitted", "worst error", "left out", "worst error left out", "set aside")
    note = (
        "Our own rows (deepgemm-2026, small-batch-gemm, flashinfer-fa3, deepep-normal-h200, put-barrier) and the "
        "all-to-all tables are held to 15 % on what is left out. Set aside: outliers, and rows that their publisher's "
        "own neighbours contradict."
    )
    return Section("Kernel and exchange tables", columns, tuple(table), ("", "", ".1%", "", ".1%", ""), note)


def _worst(rows: Iterable[Residual]) -> float | None:
    errors = [abs(r.error) for r in rows]
    return max(errors) if errors else None


def _ours(constants: Constants) -> Section:
    rows = tuple((r.what, r.library, r.known_us, r.predicted_us, r.error) for r in composite_residuals(constants))
    return Section(
        "More than one kernel, measured on two H200s",
        ("work", "software", "measured us", "planner us", "error"),
        rows,
        ("", "", ",.0f", ",.0f", "+.1%"),
        "None of these is fitted.",
    )


def _machine() -> Section:
    rows = tuple((m.what, m.figure.value, m.unit, m.figure.source) for m in MACHINE)
    title = "Measured on two H200s, without a prediction"
    return Section(title, ("what", "value", "unit", "source"), rows, ("", ",.4g", "", ""))


def _left_out(rows: Sequence[Residual]) -> Section:
    order = sorted(rows, key=lambda r: (bool(r.excluded), r.fit, -abs(r.error)))
    table = tuple(
        (
            r.library,
            r.what,
            r.hardware,
            r.known_us,
            r.predicted_us,
            r.error,
            f"set aside: {r.excluded}" if r.excluded else "fitted" if r.fit else "checked",
        )
        for r in order
    )
    columns = ("table", "row", "on", "known us", "planner us", "error", "use")
    return Section("Every kernel and exchange row", columns, table, ("", "", "", ".1f", ".1f", "+.1%", ""))
