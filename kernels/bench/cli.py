"""`tandem bench kernels | layer | once | figures | table`: measure on this GPU, and show what was measured."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernels.bench.table import rewrite

app = typer.Typer(no_args_is_help=True, help="Measure the kernels on this GPU.")
console = Console(width=180)

Json = Annotated[Path | None, typer.Option("--json", help="write the results here")]


@app.command()
def kernels(
    json: Json = None, only: Annotated[str, typer.Option(help="sections whose name contains this")] = ""
) -> None:
    """Every kernel and its library baselines, with the fraction of the limits measured in the same run."""
    _require_gpu("tandem bench kernels")
    from kernels.bench import attention, control, dense, elementwise, experts
    from kernels.bench.record import Limits, Result

    sections: list[Callable[[Limits], Iterator[Result]]] = [
        control.bench_control,
        attention.bench_decode,
        attention.bench_prefill,
        dense.bench_normed,
        dense.bench_dense,
        experts.bench_ep8,
        experts.bench_ep128,
        experts.bench_silu,
        experts.bench_gate,
        attention.bench_crossover,
        attention.bench_absorb,
        elementwise.bench_rows,
        elementwise.bench_tokens,
    ]
    chosen = [section for section in sections if only in section.__name__]
    _run("tandem bench kernels", lambda limits: (r for section in chosen for r in section(limits)), json, {})


@app.command()
def layer(json: Json = None, wide: Annotated[bool, typer.Option(help="256 experts as well")] = True) -> None:
    """One whole MoE layer, decode and prefill, in one CUDA graph: total, kernels in order, gaps, floor."""
    _require_gpu("tandem bench layer")
    from kernels.bench import layers
    from kernels.bench.record import Limits, Result

    profiles: dict[str, object] = {}
    errors: dict[str, object] = {}

    def everything(limits: Limits) -> Iterator[Result]:
        yield from layers.bench_decode_layers(limits, 32, profiles)
        yield from layers.bench_prefill_layers(limits, profiles)
        if wide:
            yield from layers.bench_decode_layers(limits, 256, profiles)
        layers.check_layers(errors)

    _run("tandem bench layer", everything, json, {"profiles": profiles, "errors": errors})


def _run(command: str, measure: Callable[..., Iterable[object]], json: Path | None, extra: dict[str, object]) -> None:
    """Print and write as it goes: what was measured stays when a later measurement fails or the run is cut."""
    import torch

    from kernels.bench.limits import measure_limits
    from kernels.bench.record import Result, machine, write

    torch.manual_seed(0)
    limits = measure_limits()
    console.print(
        f"limits: {limits.bytes_per_s / 1e12:.2f} TB/s, {limits.bf16_flops / 1e12:.0f} TFLOP/s bf16, "
        f"{limits.fp8_flops / 1e12:.0f} TFLOP/s FP8"
    )
    results: list[Result] = []
    measured_on = machine()
    for measured in measure(limits):
        assert isinstance(measured, Result)
        results.append(measured)
        console.print(_line(measured))
        if json:
            write(json, command, results, limits, measured_on, extra)
    if json:
        write(json, command, results, limits, machine(), extra)
    for named in extra.values():
        for name, found in dict(named).items():  # type: ignore[call-overload]
            console.print(f"{name}: {found}")


def _require_gpu(command: str) -> None:
    """Before what is measured is imported: that may need libraries which only machines with GPUs have."""
    import torch

    if not torch.cuda.is_available():
        why = "torch sees none here" if torch.version.cuda else "torch is built without CUDA here"
        typer.echo(f"{command}: needs an NVIDIA GPU; {why}", err=True)
        raise typer.Exit(1)


def _line(r: object) -> str:
    from kernels.bench.record import Result

    assert isinstance(r, Result)
    target = "" if r.target_us is None else f" target {r.target_us:.1f} {'met' if r.us <= r.target_us else 'MISSED'}"
    against = "".join(f" / {name} {q.low:.3f} {q.middle:.3f} {q.high:.3f}" for name, q in r.ratio.items())
    shape = " ".join(f"{key}={value}" for key, value in r.shape.items())
    return (
        f"{r.op:42} {r.backend:20} {shape:40} {r.us:9.1f} us {r.tflops:7.1f} TFLOP/s {r.gbps:7.0f} GB/s "
        f"{r.fraction_of_limit:5.2f}{target}{against}"
    )


@app.command()
def once() -> None:
    """Every kernel behind a target once, for a profiler: `make bench-counters`."""
    _require_gpu("tandem bench once")
    from kernels.bench.once import run_once

    for name in run_once():
        console.print(name)


@app.command()
def figures(results: Path, folder: Path) -> None:
    """Draw the roofline figures from a file of results."""
    from kernels.bench.figures import draw  # matplotlib loads slowly

    for path in draw(results, folder):
        console.print(str(path))


@app.command()
def table(readme: Path, results: list[Path]) -> None:
    """Write the tables of README from files of results."""
    rewrite(readme, results)


if __name__ == "__main__":
    app()
