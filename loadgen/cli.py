"""`tandem load`: real load on a running cluster through its public gRPC API."""

import asyncio
import time
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.errors import DependencyUnavailable, InvalidInput, TandemError
from common.rpc.clients import InferenceClient
from loadgen.arrivals import gamma, replay
from loadgen.measure import Bounds, saturation, summarize
from loadgen.prompts import SharedPrefix, scaled_tokens
from loadgen.record import Record
from loadgen.report import Report, show, write_json, write_requests
from loadgen.run import Outcome, run
from loadgen.traces.read import read_trace
from loadgen.traces.row import Row
from loadgen.workload import Planned, Shaping, Target, schedule, synthetic_rows

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

DEFAULT_REQUESTS = 200
ASK_AGAIN_S = 0.25


@app.command()
def load(
    context: typer.Context,
    at: Annotated[
        str, typer.Option("--at", help="host:port of a scheduler; unless given, the cluster that runs here.")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option(help="Trace file (.jsonl or .csv, also .gz); its lengths and times.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; without it a trace keeps its own times.")
    ] = None,
    cv: Annotated[
        float, typer.Option(help="Variation of the gaps at --rate: 0 even, 1 Poisson, above 1 bursts.")
    ] = 1.0,
    speed: Annotated[float, typer.Option(help="A trace's own times, this many times as fast.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="How many; all of a trace unless given.")] = None,
    scale_lengths: Annotated[str, typer.Option(help="Factor on every length, e.g. 1/64.")] = "1",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Without a trace.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Without a trace.")] = 64,
    shared_prefix_tokens: Annotated[int, typer.Option(min=0, help="Common beginning of prompts without hashes.")] = 0,
    prefix_groups: Annotated[int, typer.Option(min=1, help="How many different beginnings.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    tenant: Annotated[str, typer.Option()] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    senders: Annotated[int, typer.Option(min=1, help="Sender processes.")] = 2,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="For one request.")] = 300.0,
    wait_s: Annotated[float, typer.Option(min=0.0, help="How long to wait for the scheduler to answer.")] = 0.0,
    warmup_s: Annotated[
        float, typer.Option(min=0.0, help="Requests scheduled before this are sent, not counted.")
    ] = 0.0,
    max_lag_ms: Annotated[
        float, typer.Option(help="Generator lag (p99) above which the run fails as saturated.")
    ] = 20.0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: time to first token.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: time per output token.")] = None,
    slo_e2e_ms: Annotated[float | None, typer.Option(help="Goodput: end to end.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Summary.")] = None,
    requests_path: Annotated[
        Path | None, typer.Option("--jsonl", help="One line a request, with every arrival.")
    ] = None,
) -> None:
    """Put load on a running cluster and report latencies.

    Exit code: 0 passed, 1 requests failed, none was measured or the cluster cannot be used, 2 wrong options,
    3 generator saturated, 130 Ctrl-C, after a report of the requests that had ended.
    """
    console = Console()
    try:
        if ":" not in at:  # whoever starts this from a cluster's side has put its address in
            raise InvalidInput("--at", at, "host:port")
        _require_finite(context.params)
        for name, path in (("json", json_path), ("jsonl", requests_path)):
            _require_writable(name, path)
        rows, arrivals_s = _workload(trace, requests, rate, cv, speed, seed, prompt_tokens, output_tokens)
        if warmup_s > arrivals_s[-1]:
            raise InvalidInput("warmup-s", warmup_s, f"at most {arrivals_s[-1]:.3g}, when the last request is sent")
        shaping = Shaping(
            scale=parse_factor(scale_lengths),
            seed=seed,
            shared=SharedPrefix(shared_prefix_tokens, prefix_groups),
            temperature=temperature,
            tenant=tenant,
        )
        if trace is None and shared_prefix_tokens > (tokens := scaled_tokens(prompt_tokens, shaping.scale)):
            raise InvalidInput("shared-prefix-tokens", shared_prefix_tokens, f"at most the prompt's {tokens} tokens")
        target = asyncio.run(_target(at, wait_s))
        plan = schedule(rows, arrivals_s, target, shaping)
        if not plan.requests:
            raise InvalidInput("requests", 0, f"at least one that fits {target.context_tokens} tokens of context")
        outcome = _run_with_progress(console, at, plan.requests, senders, timeout_s)
    except TandemError as error:
        typer.echo(f"tandem load: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidInput) else 1) from error
    asked: dict[str, object] = {
        "at": at,
        "model": target.model,
        "trace": trace.name if trace else None,
        "rate_per_s": rate,
        "cv": cv,
        "speed": speed,
        "scale_lengths": str(shaping.scale),
        "seed": seed,
        "senders": senders,
        "warmup_s": warmup_s,
        "shared_prefix_tokens": shared_prefix_tokens,
        "prefix_groups": prefix_groups,
        "too_long_for_context": plan.too_long,
        "slo_ms": {"ttft": slo_ttft_ms, "tpot": slo_tpot_ms, "e2e": slo_e2e_ms},
    }
    summary = summarize(outcome.records, Bounds(slo_ttft_ms, slo_tpot_ms, slo_e2e_ms), warmup_s)
    judged = saturation(outcome.records, outcome.senders, max_lag_ms)
    report = Report(asked, summary, judged, outcome.interrupted)
    show(report, console)
    if plan.too_long:
        console.print(f"{plan.too_long} rows were left out: longer than the context of {target.context_tokens} tokens")
    if json_path:
        write_json(report, json_path)
    if requests_path:
        write_requests(outcome.records, requests_path)
    raise typer.Exit(report.verdict.exit_code)


def _require_finite(options: Mapping[str, object]) -> None:
    """Bounds of an option alone let `nan` pass."""
    for name, value in options.items():
        if isinstance(value, float) and not isfinite(value):
            raise InvalidInput(name.replace("_", "-"), value, "a finite number")


def _require_writable(name: str, path: Path | None) -> None:
    """Refuse before the load what could only fail after it."""
    if path is None:
        return
    known = path.exists()
    try:
        path.open("a", encoding="utf-8").close()
        if not known:
            path.unlink()
    except OSError as error:
        raise InvalidInput(name, path, f"a file that can be written: {error.strerror}") from error


def parse_factor(text: str) -> Fraction:
    """`1/64`, `0.5` or `2`."""
    try:
        factor = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInput("scale-lengths", text, "a number or a fraction") from error
    if factor <= 0:
        raise InvalidInput("scale-lengths", text, "above 0")
    return factor


def _workload(
    trace: Path | None,
    requests: int | None,
    rate: float | None,
    cv: float,
    speed: float,
    seed: int,
    prompt_tokens: int,
    output_tokens: int,
) -> tuple[list[Row], list[float]]:
    """Rows and their arrivals: a trace's own times, or a process at `rate`."""
    if speed <= 0:  # whoever gave one meant it to count
        raise InvalidInput("speed", speed, "above 0")
    if trace is None:
        if rate is None:
            raise InvalidInput("rate", None, "given when there is no trace")
        rows = synthetic_rows(requests or DEFAULT_REQUESTS, prompt_tokens, output_tokens)
    else:
        rows = read_trace(trace, requests)
    if rate is not None:
        return rows, gamma(rate, len(rows), cv, seed)
    recorded_s = [row.arrival_s for row in rows if row.arrival_s is not None]
    if len(recorded_s) != len(rows):
        raise InvalidInput("rate", None, "given: this trace has lengths and no times")
    return rows, replay(recorded_s, speed)


async def _target(at: str, wait_s: float) -> Target:
    """What is served at `at`; while it does not answer, ask again for up to `wait_s`."""
    give_up_s = time.monotonic() + wait_s
    async with InferenceClient(at) as client:
        while True:
            try:
                info = await client.model()
            except DependencyUnavailable:
                if time.monotonic() >= give_up_s:
                    raise
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return Target(info.model, info.vocab_tokens, info.context_tokens)


def _run_with_progress(
    console: Console, at: str, requests: tuple[Planned, ...], senders: int, timeout_s: float
) -> Outcome:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("requests ended", total=len(requests))
        failed = 0

        def advance(record: Record) -> None:
            nonlocal failed
            failed += bool(record.error)
            bar.update(task, advance=1, description=f"requests ended, {failed} failed" if failed else "requests ended")

        return run(at, requests, min(senders, len(requests)), timeout_s, advance)
