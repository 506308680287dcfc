"""What the command shows for each question, as sections."""

from collections.abc import Sequence

from common.errors import InvalidInput
from loadgen.planner.accuracy import accuracy_sections
from loadgen.planner.deployment import DecodePlan, DecodePoint, decode_point, sweep
from loadgen.planner.figure import Figure
from loadgen.planner.fit import Constants
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import Schedule
from loadgen.planner.measured import MeasuredCheck
from loadgen.planner.pareto import pareto_front
from loadgen.planner.ratio import Fleet, Recommendation
from loadgen.planner.report_points import BATCHES, TPS
from loadgen.planner.section import Cell, Section
from loadgen.planner.workload import Workload

_POINT_COLUMNS = (
    "ep", "tp", "batch", "schedule", "layer us", "step ms", "tokens/s a request", "tokens/s a node",
    "90 % low", "90 % high", "largest part", "bound by", "memory GB",
)  # fmt: skip
_POINT_FORMATS = ("", "", "", "", ",.0f", ",.2f", ",.1f", ",.0f", ",.0f", ",.0f", "", "", ".1f")


def sweep_sections(plan: DecodePlan, eps: Sequence[int]) -> list[Section]:
    """The fronts of a sweep, which schedule wins where, and what was refused."""
    points, refused = sweep(plan, eps=eps, tps=TPS, batches=BATCHES)
    if not points:
        raise InvalidInput("hardware", plan.gpu.name, f"a deployment that fits; {refused[0][1]}")
    fronts = [p for ep in eps for p in pareto_front(q for q in points if q.ep == ep)]
    sections = [
        Section(
            f"{plan.model.name} on {plan.gpu.name}: best throughput at each output speed",
            _POINT_COLUMNS,
            tuple(_point_row(p) for p in fronts),
            _POINT_FORMATS,
            f"{plan.cached_tokens:,.0f} tokens cached, {plan.draft_tokens} drafts at {plan.acceptance:.0%}, "
            f"stack {plan.stack.name} ({plan.stack.about}). Batch counts the requests of one instance of tp GPUs.",
        ),
        _schedules(points, eps),
    ]
    if refused:
        rows = tuple((what, str(error)) for what, error in refused)
        sections.append(Section("Refused", ("deployment", "why"), rows))
    return sections


def point_sections(plan: DecodePlan, *, ep: int, tp: int, batch: int, schedule: Schedule | None) -> list[Section]:
    """One deployment in full."""
    point = decode_point(plan, ep=ep, tp=tp, batch=batch, schedule=schedule)
    layer, step, memory = point.step.layer, point.step, point.memory
    parts: list[tuple[Cell, ...]] = [(name, us, us / layer.total_us) for name, us in layer.kernels_us.items()]
    parts += [
        ("dispatch, busy and exposed", layer.dispatch_us, layer.dispatch_us / layer.total_us),
        ("combine, busy and exposed", layer.combine_us, layer.combine_us / layer.total_us),
        ("slowed by exchanges in flight", layer.contention_us, layer.contention_us / layer.total_us),
        ("whole layer", layer.total_us, 1.0),
    ]
    steps: list[tuple[Cell, ...]] = [
        (f"{plan.model.moe_layers} layers", plan.model.moe_layers * layer.total_us / 1e3),
        (f"{plan.model.dense_layers} dense layers", step.dense_us / 1e3),
        ("drafting", step.draft_us / 1e3),
        ("head and sampling", step.head_us / 1e3),
        ("whole step", step.total_us / 1e3),
    ]
    held: list[tuple[Cell, ...]] = [
        ("routed experts", memory.experts_bytes / 1e9),
        ("attention weights", memory.attention_bytes / 1e9),
        ("other weights", memory.other_weights_bytes / 1e9),
        ("latent cache", memory.cache_bytes / 1e9),
        ("exchange buffers", memory.exchange_bytes / 1e9),
        ("reserve", memory.reserve_bytes / 1e9),
        ("free", memory.free_bytes / 1e9),
    ]
    return [
        Section("Deployment", _POINT_COLUMNS, (_point_row(point),), _POINT_FORMATS),
        Section("One layer", ("part", "us", "share"), tuple(parts), ("", ",.1f", ".0%")),
        Section(
            "What holds the layer back",
            ("by", "us", "share"),
            tuple((name, us, us / layer.total_us) for name, us in sorted(layer.bounds_us.items())),
            ("", ",.1f", ".0%"),
        ),
        Section("One step", ("part", "ms"), tuple(steps), ("", ",.2f")),
        Section("Memory of one GPU", ("part", "GB"), tuple(held), ("", ",.2f")),
    ]


def workload_sections(load: Workload, found: Recommendation, fleet: Fleet, gpus: int) -> list[Section]:
    """A recommendation: what to run, what it serves, how sure."""
    p, d, gpu = found.prefill, found.decode, fleet.gpu
    low, high = found.interval
    rows: list[tuple[Cell, ...]] = [
        ("workload", f"{load.name}: {load.input_mean:,.0f} in (p90 {load.input_p90:,.0f}), "
         f"{load.output_mean:,.0f} out, {load.hit_rate:.0%} of the prompt cached"),
        ("bounds", f"p90 first token {fleet.ttft_s:g} s, mean {fleet.itl_s * 1e3:g} ms a token"),
        ("prefill", f"{found.prefill_groups} x EP{p.ep} TP{p.tp}, passes of {p.pass_tokens:,} tokens an instance, "
         f"at {p.load:.0%} load"),
        ("decode", f"{found.decode_groups} x EP{d.ep} TP{d.tp}, batch {d.batch} an instance, "
         f"schedule {d.schedule.value}, largest part {d.limiter}, mostly bound by {d.bound_by}"),
        ("prefill : decode", f"{found.prefill_gpus} : {found.decode_gpus} of {gpus} {gpu.name}, "
         f"{found.idle_gpus} idle"),
        ("requests", f"{found.requests_per_s:,.1f}/s ({low:,.1f} to {high:,.1f} at 90 %), bound by {found.bound_by}"),
        ("output", f"{found.output_tokens_per_s:,.0f} tokens/s, {d.output_tokens_per_s:,.1f} tokens/s a request"),
        ("first token", f"{p.ttft_mean_s:,.2f} s mean, {p.ttft_p90_s:,.2f} s p90"),
        ("token", f"{1e3 / d.output_tokens_per_s:,.1f} ms mean, a step of {d.step.total_us / 1e3:,.1f} ms"),
        ("handoff", f"{p.handoff_s * 1e3:,.1f} ms a mean prompt over "
         f"{gpu.network_achieved_bytes_per_s.value / 1e9:.0f} GB/s, "
         f"{p.exposed_handoff_s * 1e3:,.1f} ms of it after the last chunk"),
        ("cost", f"${found.cost_per_million_output:,.2f} a million output tokens at "
         f"${gpu.gpu_hour_usd.value:g} a GPU hour"),
        ("certainty", f"best in {found.confidence:.0%} of draws; "
         + (f"otherwise most often {found.runner_up}" if found.runner_up else "no other split won one")),
    ]  # fmt: skip
    return [Section(f"{load.name} on {gpus} {gpu.name}", ("", "answer"), tuple(rows))]


def hardware_section(gpu: Hardware) -> Section:
    """Every figure of a hardware entry with its kind and source."""
    rows = tuple((name, *_figure(figure)) for name, figure in gpu.figures().items())
    return Section(f"Hardware {gpu.name}", ("figure", "value", "kind", "source"), rows, ("", ",.4g", "", ""))


def fit_sections(committed: Constants, fitted: Constants, measured: MeasuredCheck) -> list[Section]:
    """The constants fitted anew beside the committed ones, and every residual."""
    rows: list[tuple[Cell, ...]] = [
        (name, value, committed.in_layer.get(name)) for name, value in fitted.in_layer.items()
    ]
    for name, curve in fitted.curves.items():
        mine = committed.curves.get(name)
        for field in ("fixed_us", "per_k_us", "wave_us", "compute", "memory", "half_length"):
            rows.append((f"{name}.{field}", getattr(curve, field), getattr(mine, field, None)))
    for name, exchange in fitted.exchanges.items():
        other = committed.exchanges.get(name)
        for field in ("per_peer_us", "per_message_us", "forward_share"):
            rows.append((f"{name}.{field}", getattr(exchange, field), getattr(other, field, None)))
        for field in ("fixed_us", "network_fixed_us", "nvlink_share", "network_share"):
            theirs = getattr(other, field, (None, None))
            for way, value, known in zip(("dispatch", "combine"), getattr(exchange, field), theirs, strict=True):
                rows.append((f"{name}.{field}.{way}", value, known))
    same = fitted == committed
    note = "The committed constants are this fit's." if same else "The committed constants differ from this fit."
    constants = Section("Constants", ("constant", "fitted", "committed"), tuple(rows), ("", ".4g", ".4g"), note)
    return [constants, *accuracy_sections(fitted, measured)]


def _figure(figure: Figure) -> tuple[Cell, Cell, Cell]:
    return figure.value, figure.kind.value, figure.source


def _point_row(point: DecodePoint) -> tuple[Cell, ...]:
    low, high = point.interval
    node = point.node_tokens_per_s
    return (
        point.ep,
        point.tp,
        point.batch,
        point.schedule.value,
        point.step.layer.total_us,
        point.step.total_us / 1e3,
        point.output_tokens_per_s,
        node,
        node * low,
        node * high,
        point.limiter,
        point.bound_by,
        point.memory.total_bytes / 1e9,
    )


def _schedules(points: Sequence[DecodePoint], eps: Sequence[int]) -> Section:
    """The fastest schedule at TP1 by EP and batch."""
    batches = sorted({p.batch for p in points if p.tp == 1})
    rows = []
    for ep in eps:
        chosen = {p.batch: p.schedule.value for p in points if p.ep == ep and p.tp == 1}
        rows.append((f"EP{ep}", *(chosen.get(batch) for batch in batches)))
    columns = ("TP1", *(f"batch {batch}" for batch in batches))
    return Section("Fastest schedule", columns, tuple(rows), note="– does not fit in memory.")
