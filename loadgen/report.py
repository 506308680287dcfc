"""A run's result for people (terminal), for programs (JSON) and request by request (JSON lines)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from loadgen.measure import PERCENTILES, Distribution, Saturation, Summary, latency
from loadgen.record import Record

SCHEMA = 1
_WIDEST = 1000


class Verdict(StrEnum):
    """How a run ended; its exit code is beside it."""

    PASSED = "passed"
    ERRORS = "requests failed"
    UNMEASURED = "no request was measured"
    SATURATED = "generator saturated"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        codes = {Verdict.PASSED: 0, Verdict.SATURATED: 3, Verdict.INTERRUPTED: 130}
        return codes.get(self, 1)


@dataclass(frozen=True, slots=True)
class Report:
    workload: Mapping[str, object]  # what was asked for
    summary: Summary
    saturation: Saturation
    interrupted: bool = False  # by Ctrl-C: of the requests that had ended by then

    @property
    def verdict(self) -> Verdict:
        """Errors come first: they are the server's; saturation makes the latencies worthless, not the errors."""
        if self.interrupted:
            return Verdict.INTERRUPTED
        if self.summary.errors:
            return Verdict.ERRORS
        if not self.summary.requests:
            return Verdict.UNMEASURED
        return Verdict.SATURATED if self.saturation.saturated else Verdict.PASSED


def write_json(report: Report, path: Path) -> None:
    document = {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "workload": dict(report.workload),
        "percentiles": PERCENTILES,
        "summary": asdict(report.summary),
        "generator": {**asdict(report.saturation), "saturated": report.saturation.saturated},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def write_requests(records: Sequence[Record], path: Path) -> None:
    """One JSON object a line, in the order of the schedule, with every arrival: all can be computed again from it."""
    with path.open("w", encoding="utf-8") as file:
        for record in sorted(records, key=lambda r: r.index):
            line = asdict(record)
            if record.arrivals_s:
                one = latency(record)
                line |= {"ttft_s": one.ttft_s, "ttft_from_send_s": one.ttft_from_send_s, "e2e_s": one.e2e_s}
                line |= {"tpot_s": one.tpot_s}
            file.write(json.dumps(line) + "\n")


def show(report: Report, console: Console) -> None:
    latencies = _latencies(report.summary)
    needed = console.measure(latencies, options=console.options.update(max_width=_WIDEST)).maximum
    console.width = max(console.width, needed)  # a line that a terminal wraps can be read, a number that is cut cannot
    for part in (_totals(report), latencies, _verdict(report)):
        console.print(part)


def _totals(report: Report) -> RenderableType:
    summary = report.summary
    table = Table(title="load", show_header=False)
    table.add_column(justify="left", overflow="fold")
    table.add_column(justify="right", overflow="fold")
    rows = [
        ("requests", f"{summary.succeeded} of {summary.requests} succeeded in {summary.span_s:.1f} s"),
        ("rate, requests/s", f"{summary.scheduled_rate_per_s:.2f} scheduled, {summary.sent_rate_per_s:.2f} sent"),
        ("completed, requests/s", f"{summary.completed_rate_per_s:.2f}"),
        ("completion tokens/s", f"{summary.completion_tokens_per_s:.1f}"),
        ("prompt tokens", f"{summary.prompt_tokens}, {summary.cached_tokens} of them cached"),
    ]
    if summary.draft_acceptance is not None:
        rows.append(("drafts accepted", f"{summary.draft_acceptance:.1%}"))
    if summary.goodput_share is not None and summary.goodput_per_s is not None:
        rows.append(("goodput", f"{summary.goodput_share:.1%} of requests, {summary.goodput_per_s:.2f}/s"))
    rows += [
        (f"error {reason}", f"{count}, first: {summary.examples[reason]}") for reason, count in summary.errors.items()
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _latencies(summary: Summary) -> RenderableType:
    caption = "from the schedule; 'sent' from the send; ITL per token"
    table = Table(title="latency, ms", caption=caption, box=SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    for name in ("mean", *(f"p{p:g}" for p in PERCENTILES), "max", "values"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, values in (
        ("TTFT", summary.ttft),
        ("TTFT, sent", summary.ttft_from_send),
        ("TPOT", summary.tpot),
        ("ITL", summary.itl),
        ("message gap", summary.message_gap),
        ("E2E", summary.e2e),
        ("send lag", summary.send_lag),
    ):
        table.add_row(name, *_cells(values))
    return table


def _cells(values: Distribution | None) -> list[str]:
    if values is None:
        return ["-"] * (3 + len(PERCENTILES))
    numbers = (values.mean_ms, *values.percentiles_ms, values.max_ms)
    return [*(f"{number:.1f}" for number in numbers), str(values.count)]


def _verdict(report: Report) -> RenderableType:
    judged = report.saturation
    text = (
        f"generator: send lag p99 {judged.send_lag_p99_ms:.1f} ms, loop lag p99 {judged.loop_lag_p99_ms:.1f} ms"
        f" (limit {judged.limit_ms:.0f} ms), busiest sender {judged.cpu_share_max:.0%} of a core\n"
    )
    colour = "green" if report.verdict is Verdict.PASSED else "red"
    return f"{text}[bold {colour}]{report.verdict.value}[/]"
