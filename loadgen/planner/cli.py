"""`tandem plan`: foresee a deployment, a workload, or the reference report's figures. Needs no GPU and no service."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.errors import InvalidInput, TandemError
from loadgen.planner.accuracy import accuracy_sections
from loadgen.planner.answers import fit_sections, hardware_section, point_sections, sweep_sections, workload_sections
from loadgen.planner.deployment import DecodePlan
from loadgen.planner.documents import write_documents
from loadgen.planner.duration import seconds
from loadgen.planner.figure import assumed
from loadgen.planner.figures import draw_all
from loadgen.planner.fit import Constants, fit_constants
from loadgen.planner.hardware import Hardware, hardware
from loadgen.planner.measured import RESULTS, MeasuredCheck, check_results, read_results
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.page import html_page
from loadgen.planner.question import question
from loadgen.planner.ratio import Fleet, recommend, smallest_fleet
from loadgen.planner.report_points import EPS
from loadgen.planner.schedule import Schedule
from loadgen.planner.section import Section, rich_table
from loadgen.planner.stacks import committed_constants
from loadgen.planner.workload import workload as workload_of

app = typer.Typer(help=__doc__, add_completion=False)

_EXIT_INVALID = 2


@app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Preset, config.json or its folder.")] = "deepseek-v3",
    hardware_name: Annotated[str, typer.Option("--hardware", help="h100, h800, h200 or gb200.")] = "h200",
    gpus: Annotated[int, typer.Option(help="GPUs to divide or to sweep over.")] = 64,
    stack: Annotated[str, typer.Option(help="Whose software.")] = "measured-2026",
    ep: Annotated[int | None, typer.Option(help="One deployment in full instead of a sweep.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallelism of that deployment.")] = 1,
    batch: Annotated[int, typer.Option(help="Requests of an instance of it.")] = 32,
    schedule: Annotated[Schedule | None, typer.Option(help="Its schedule; the fastest if not given.")] = None,
    cached: Annotated[float, typer.Option(help="Mean cached tokens of a request.")] = 5000.0,
    drafts: Annotated[int, typer.Option(help="Draft tokens a step.")] = 1,
    acceptance: Annotated[float, typer.Option(help="Chance that the next draft is accepted.")] = 0.6,
    redundant: Annotated[int, typer.Option(help="Copies of hot experts.")] = 0,
    imbalance: Annotated[float, typer.Option(help="Hottest rank's rows over the mean, beyond chance.")] = 1.0,
    workload: Annotated[str | None, typer.Option(help="Preset, lengths (.json) or trace: recommend a split.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests/s to serve: finds the GPU count.")] = None,
    ttft: Annotated[str, typer.Option(help="Bound on the p90 first token, as 2s or 500ms.")] = "2s",
    itl: Annotated[str, typer.Option(help="Bound on the mean time of a token, as 50ms.")] = "50ms",
    hit_rate: Annotated[float | None, typer.Option(help="Prefix hits, instead of the workload's own.")] = None,
    gpu_hour_usd: Annotated[float | None, typer.Option(help="Price of a GPU hour.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Rebuild the report's figures into this folder.")] = None,
    fit: Annotated[bool, typer.Option(help="Fit all constants anew; print them and every residual.")] = False,
    tables: Annotated[Path, typer.Option(help="Folder of measured kernel tables.")] = RESULTS,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write what was printed.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", help="Write one page, readable offline.")] = None,
    write_docs: Annotated[Path | None, typer.Option(help="Rewrite the produced parts of a docs folder.")] = None,
) -> None:
    """Predict; with no question, the best throughput at each output speed for a model on some hardware."""
    console = Console(width=160 if not Console().is_terminal else None)
    try:
        given = _given(context)
        question(given)
        if "tables" in given and not tables.is_dir():
            raise InvalidInput("tables", tables, "a folder")
        constants = Constants.from_json(committed_constants())
        gpu = _priced(hardware(hardware_name), gpu_hour_usd)
        images: list[Path] = []
        if write_docs is not None:
            for path in write_documents(constants, write_docs):
                console.print(f"wrote {path}")
            return
        if fit:
            sections = fit_sections(constants, fit_constants(), _measured(tables, constants))
        elif figures is not None:
            images = draw_all(constants.stack("report-2025"), figures)
            sections = accuracy_sections(constants, _measured(tables, constants))
        elif workload is not None:
            load = workload_of(workload)
            load = load if hit_rate is None else load.with_hit_rate(hit_rate)
            ttft_s, itl_s = seconds("ttft", ttft), seconds("itl", itl)
            fleet = Fleet(model_shape(model), gpu, constants.stack(stack), ttft_s, itl_s, acceptance, drafts)
            total = gpus if rate is None else smallest_fleet(load, fleet, requests_per_s=rate)
            sections = workload_sections(load, recommend(load, fleet, gpus=total), fleet, total)
        else:
            shape = model_shape(model)
            asked = DecodePlan(
                shape,
                gpu,
                constants.stack(stack),
                cached_tokens=cached,
                draft_tokens=drafts if shape.mtp_layers or "drafts" in given else 0,
                acceptance=acceptance,
                redundant_experts=redundant,
                imbalance=imbalance,
            )
            if ep is not None:
                sections = point_sections(asked, ep=ep, tp=tp, batch=batch, schedule=schedule)
            else:
                sections = sweep_sections(asked, _eps(gpus))
            sections.append(hardware_section(gpu))
        _show(console, sections, images, json_path, html_path)
    except TandemError as error:
        Console(stderr=True).print(f"{error.reason} {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(_EXIT_INVALID) from error


def _eps(gpus: int) -> list[int]:
    eps = [ep for ep in EPS if ep <= gpus]
    if not eps:
        raise InvalidInput("gpus", gpus, f"at least {EPS[0]}")
    return eps


def _measured(tables: Path, constants: Constants) -> MeasuredCheck:
    return check_results(read_results(tables), constants)


def _priced(gpu: Hardware, usd: float | None) -> Hardware:
    if usd is None:
        return gpu
    if not 0 < usd < inf:
        raise InvalidInput("gpu_hour_usd", usd, "more than 0, and finite")
    return replace(gpu, gpu_hour_usd=assumed(usd, "given on the command line"))


def _show(
    console: Console, sections: list[Section], images: list[Path], json_path: Path | None, html_path: Path | None
) -> None:
    for section in sections:
        console.print(rich_table(section))
    for image in images:
        console.print(f"wrote {image}")
    if json_path is not None:
        content = {"sections": [section.as_json() for section in sections], "figures": [str(i) for i in images]}
        _write("json", json_path, json.dumps(content, indent=1) + "\n")
    if html_path is not None:
        _write("html", html_path, html_page("Tandem plan", sections, images))


def _write(field: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(field, path, f"a file that can be written ({error.strerror})") from error


def _given(context: typer.Context) -> dict[str, object]:
    """Options typed by the user, by the names they have on the command line."""
    typed = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and value is not False:
            typed[name.removesuffix("_name").removesuffix("_path")] = value
    return typed


def main() -> None:
    """Entry point of `python -m loadgen.planner`."""
    app()
