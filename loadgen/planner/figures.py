"""The report's figures, redrawn from the model, with the report's own numbers marked where its text gives them."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from common.errors import InvalidInput
from loadgen.planner.accuracy import GAIN_BELOW_32, GAIN_FROM_32
from loadgen.planner.attention_operations import Queries, decode_attention, output_operations, projection_operations
from loadgen.planner.deployment import DecodePoint
from loadgen.planner.efficiency import fastest_us
from loadgen.planner.expert_operations import expert_load, routed_operations
from loadgen.planner.hardware import hardware
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.operations import KernelClass, Operation
from loadgen.planner.pareto import pareto_front
from loadgen.planner.report_layers import microbatch_gain, report_breakdown
from loadgen.planner.report_points import BATCH, BATCHES, CACHED, EPS, GAIN_BATCHES, QUERY, REPORT_POINTS
from loadgen.planner.report_sweep import report_sweep
from loadgen.planner.roofline import ceiling_flops_per_s
from loadgen.planner.stacks import Stack

_DPI = 100
# Left, bottom, width, height: fixed, so that nothing has to be laid out.
_PLOT = (0.09, 0.12, 0.88, 0.8)
_TOTALS = ("ep8_total", "none_total", "overlap_total", "dual_total")


def draw_all(stack: Stack, folder: Path) -> list[Path]:
    """Write every figure as PNG into `folder`, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("figures", folder, f"a folder that can be made ({error.strerror})") from error
    drawings: dict[str, Callable[[Axes, Stack], None]] = {
        "throughput": _throughput,
        "breakdown": _breakdown,
        "microbatch": _microbatch,
        "roofline-group-gemm": _group_gemm,
        "roofline-gemm": _gemm,
    }
    paths = []
    for name, draw in drawings.items():
        figure = Figure(figsize=(8, 5))
        FigureCanvasAgg(figure)
        draw(figure.add_axes(_PLOT), stack)
        path = folder / f"{name}.png"
        try:
            # No date and no version inside: the same model gives the same bytes.
            figure.savefig(path, dpi=_DPI, metadata={"Software": None})
        except OSError as error:
            raise InvalidInput("figures", path, f"a file that can be written ({error.strerror})") from error
        paths.append(path)
    return paths


def _throughput(axes: Axes, stack: Stack) -> None:
    for ep, points in report_sweep(stack).items():
        front = pareto_front(points)
        colour = axes.plot(
            [p.output_tokens_per_s for p in front],
            [p.node_tokens_per_s for p in front],
            marker="o",
            label=f"EP{ep}, {'8 x H200' if ep == 8 else f'{ep} x H100'}",
        )[0].get_color()
        beaten = [p for p in points if not _on(front, p)]
        axes.scatter(
            [p.output_tokens_per_s for p in beaten], [p.node_tokens_per_s for p in beaten], s=6, alpha=0.4, color=colour
        )
    axes.set(
        yscale="log",
        xlabel="output speed, tokens/s a request",
        ylabel="tokens/s a node",
        title="Throughput against output speed (5,000 cached, query 2, 60 % accepted)",
    )
    axes.legend()


def _on(front: list[DecodePoint], point: DecodePoint) -> bool:
    return any(point is other for other in front)


def _breakdown(axes: Axes, stack: Stack) -> None:
    layers = report_breakdown(stack)
    names = list(layers)
    parts: dict[str, list[float]] = {}
    for layer in layers.values():
        values = {**layer.kernels_us, "dispatch": layer.dispatch_us, "combine": layer.combine_us}
        for part in values:
            parts.setdefault(part, [0.0] * len(names))
    for index, layer in enumerate(layers.values()):
        values = {**layer.kernels_us, "dispatch": layer.dispatch_us, "combine": layer.combine_us}
        for part, us in values.items():
            parts[part][index] = us
    base = [0.0] * len(names)
    for part, heights in parts.items():
        axes.bar(names, heights, bottom=base, label=part)
        base = [b + h for b, h in zip(base, heights, strict=True)]
    known = {p.key: p.value for p in REPORT_POINTS}
    for index, key in enumerate(_TOTALS):
        axes.plot(index, known[key], marker="_", markersize=60, color="black")
        axes.annotate(
            f"report {known[key]:,.0f}\nplanner {base[index]:,.0f}", (index, base[index]), ha="center", va="bottom"
        )
    axes.set(ylabel="us a layer", ylim=(0, 3500), title="One layer on H100, batch 128 (line: the report)")
    axes.tick_params(axis="x", labelrotation=10)
    axes.legend(fontsize="small", ncols=4, loc="upper left")


def _microbatch(axes: Axes, stack: Stack) -> None:
    labels = [str(batch) for batch in GAIN_BATCHES]
    axes.bar(labels, [100 * microbatch_gain(stack, batch) for batch in GAIN_BATCHES])
    for index, batch in enumerate(GAIN_BATCHES):
        low, high = GAIN_BELOW_32 if batch < 32 else GAIN_FROM_32
        axes.fill_between((index - 0.45, index + 0.45), 100 * low, 100 * high, alpha=0.2, color="black")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(
        xlabel="requests a GPU",
        ylabel="layer time saved, %",
        title="Two microbatches against dispatch overlap, EP128 (grey: the report's bounds)",
    )


def _group_gemm(axes: Axes, stack: Stack) -> None:
    model = model_shape("deepseek-v3")

    def kernels(ep: int, batch: int) -> list[Operation]:
        load = expert_load(model, batch * QUERY, ep, chance=False)
        return [o for o in routed_operations(model, load) if o.kernel is KernelClass.GROUPED_GEMM]

    _roofline(axes, stack, kernels, "GroupGEMM roofline on H100 (star: batch 128)")


def _gemm(axes: Axes, stack: Stack) -> None:
    model = model_shape("deepseek-v3")

    def kernels(_ep: int, batch: int) -> list[Operation]:
        queries = Queries(batch, QUERY, CACHED)
        operations = [
            *projection_operations(model, queries, 1),
            *decode_attention(model, queries, 1),
            *output_operations(model, queries, 1),
        ]
        return [o for o in operations if o.kernel is KernelClass.GEMM]

    _roofline(axes, stack, kernels, "GEMM roofline on H100, projections of one layer (every EP alike; star: batch 128)")


def _roofline(axes: Axes, stack: Stack, kernels: Callable[[int, int], list[Operation]], title: str) -> None:
    gpu = hardware("h100")
    lowest = highest = 1.0
    for ep in EPS:
        line = []
        for batch in BATCHES:
            operations = kernels(ep, batch)
            us = sum(fastest_us(o, gpu, stack.curves[o.kernel]) for o in operations)
            flops, moved = sum(o.flops for o in operations), sum(o.bytes for o in operations)
            line.append((flops / moved, flops / us / 1e6))
            lowest, highest = min(lowest, flops / moved), max(highest, flops / moved)
            if batch == BATCH:
                axes.scatter(*line[-1], marker="*", s=160, zorder=3)
        axes.plot([x for x, _ in line], [y for _, y in line], marker=".", label=f"EP{ep}")
    ridge = gpu.fp8_flops_per_s.value / gpu.memory_bytes_per_s.value
    ceiling = [lowest, ridge, max(2 * ridge, highest)]
    axes.plot(ceiling, [ceiling_flops_per_s(x, "fp8", gpu) / 1e12 for x in ceiling], color="black", label="datasheet")
    axes.set(xscale="log", yscale="log", xlabel="FLOPs a byte", ylabel="TFLOP/s", title=title)
    axes.legend()
