"""Time of one layer: operations to kernels to stages to a schedule, with what limits it and how sure we are."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidInput
from loadgen.planner.attention_operations import (
    Queries,
    decode_attention,
    output_operations,
    prefill_attention,
    projection_operations,
)
from loadgen.planner.communication import Direction, Exchange, Traffic, exchange_us, token_bytes
from loadgen.planner.efficiency import bound, fastest_us
from loadgen.planner.expert_operations import (
    dense_operations,
    expert_load,
    gate_operation,
    routed_operations,
    shared_operations,
)
from loadgen.planner.hardware import Hardware
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.operations import KernelClass, Operation, collective
from loadgen.planner.schedule import Flight, Schedule, Span, Stages, layer_span
from loadgen.planner.stacks import Stack

__all__ = ["LayerTime", "Parallelism", "Schedule", "decode_layer", "prefill_layer"]

# Half-width of a 90 % interval of a normal error, in standard deviations.
Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one pool's group is cut, and how evenly its experts are used.

    Attributes:
        ep, tp: `ep = dp * tp`.
        redundant_experts: copies of hot experts.
        imbalance: the hottest rank's rows over the mean, beyond what chance does.
        chance: whether routing is random; off for benchmarks that route evenly by construction.
    """

    ep: int
    tp: int = 1
    redundant_experts: int = 0
    imbalance: float = 1.0
    chance: bool = True

    @property
    def dp(self) -> int:
        return self.ep // self.tp

    def check(self, model: ModelShape, gpu: Hardware) -> None:
        """Raises `InvalidInput` for a cut that cannot exist."""
        if self.redundant_experts < 0:
            raise InvalidInput("redundant_experts", self.redundant_experts, "at least 0")
        if self.tp < 1 or model.heads % self.tp:
            raise InvalidInput("tp", self.tp, f"a divisor of the {model.heads} attention heads")
        if self.tp > gpu.gpus_per_node:
            raise InvalidInput("tp", self.tp, f"at most {gpu.gpus_per_node}, the GPUs of a node of {gpu.name}")
        if self.ep < 1 or self.ep % self.tp:
            raise InvalidInput("ep", self.ep, f"a multiple of tp = {self.tp}, since ep = dp * tp")


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One mixture-of-experts layer in the steady state.

    Attributes:
        total_us: best estimate.
        sigma_us: its standard deviation, from the residuals of the curves.
        kernels_us: compute time by kernel class, both microbatches together.
        dispatch_us, combine_us: exchange time on the critical path.
        contention_us: compute slowed by exchanges in flight.
        network_us: how long the network was busy.
        limiter: the largest part.
        bounds_us: the same time by what holds it back: compute, memory, latency, nvlink, network.
    """

    total_us: float
    sigma_us: float
    kernels_us: dict[str, float]
    dispatch_us: float
    combine_us: float
    contention_us: float
    network_us: float
    limiter: str
    bounds_us: dict[str, float]

    @property
    def bound_by(self) -> str:
        """What holds most of the layer back."""
        return max(self.bounds_us.items(), key=lambda kv: kv[1])[0]

    @property
    def interval_us(self) -> tuple[float, float]:
        """90 % interval."""
        return max(self.total_us - Z90 * self.sigma_us, 0.0), self.total_us + Z90 * self.sigma_us


def decode_layer(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    *,
    batch: int,
    query_tokens: int,
    cached_tokens: float,
    schedule: Schedule,
) -> LayerTime:
    """One decode layer with `batch` requests in each instance (data-parallel group of `tp` GPUs)."""
    if batch < 1:
        raise InvalidInput("batch", batch, "at least 1 request in an instance")
    if query_tokens < 1:
        raise InvalidInput("query_tokens", query_tokens, "at least 1")
    parts = [batch]
    if schedule is Schedule.DUAL_MICROBATCH:
        if batch < 2:
            raise InvalidInput("batch", batch, "at least 2 requests to split into two microbatches")
        parts = [batch - batch // 2, batch // 2]
    queries = [Queries(part, query_tokens, cached_tokens) for part in parts]
    library = _decode_exchange(stack, cut, gpu)
    return _moe_layer(model, gpu, stack, cut, queries, schedule, library, prefill=False)


def prefill_layer(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    *,
    tokens: int,
    prompt_tokens: float,
    cached_tokens: float,
    schedule: Schedule,
) -> LayerTime:
    """One prefill layer: `tokens` new tokens in each instance, from prompts of `prompt_tokens` new ones each."""
    if tokens < 1:
        raise InvalidInput("prefill.tokens", tokens, "at least 1")
    parts = [1.0] if schedule is not Schedule.DUAL_MICROBATCH else [0.5, 0.5]
    queries = [Queries(part * tokens / prompt_tokens, prompt_tokens, cached_tokens) for part in parts]
    return _moe_layer(model, gpu, stack, cut, queries, schedule, stack.prefill_exchange, prefill=True)


def dense_layer_us(
    model: ModelShape, gpu: Hardware, stack: Stack, cut: Parallelism, queries: Queries, *, prefill: bool
) -> float:
    """One of the leading dense layers; the whole batch at once in every schedule."""
    operations = _attention_half(model, queries, cut.tp, prefill=prefill)
    operations += dense_operations(model, queries.tokens, cut.tp)
    return sum(in_layer_us(operation, gpu, stack) for operation in operations)


def layer_operations(
    model: ModelShape, queries: Queries, cut: Parallelism, *, prefill: bool = False
) -> list[Operation]:
    """Every kernel of one mixture-of-experts layer on one rank, exchanges excluded."""
    share = queries.tokens / cut.tp
    load = expert_load(
        model, share, cut.ep, redundant=cut.redundant_experts, imbalance=cut.imbalance, chance=cut.chance
    )
    operations = _attention_half(model, queries, cut.tp, prefill=prefill)
    operations += [gate_operation(model, share), *shared_operations(model, share), *routed_operations(model, load)]
    if cut.tp > 1:
        operations.append(collective("all-gather", 5, queries.tokens * model.hidden * 2 * (cut.tp - 1) / cut.tp))
    return operations


def in_layer_us(operation: Operation, gpu: Hardware, stack: Stack) -> float:
    """One kernel inside a captured graph of a long run."""
    return stack.launch_us + fastest_us(operation, gpu, stack.curves[operation.kernel], stack.sustained)


def _attention_half(model: ModelShape, queries: Queries, tp: int, *, prefill: bool) -> list[Operation]:
    attend = prefill_attention if prefill else decode_attention
    return [
        *projection_operations(model, queries, tp),
        *attend(model, queries, tp),
        *output_operations(model, queries, tp),
    ]


def _decode_exchange(stack: Stack, cut: Parallelism, gpu: Hardware) -> Exchange:
    return stack.nvlink_exchange if cut.ep <= gpu.nvlink_domain_gpus else stack.network_exchange


def _moe_layer(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    queries: Sequence[Queries],
    schedule: Schedule,
    library: Exchange,
    *,
    prefill: bool,
) -> LayerTime:
    cut.check(model, gpu)
    kernels: dict[KernelClass, float] = {}
    bounds: dict[str, float] = {}
    batches = []
    for part in queries:
        operations = layer_operations(model, part, cut, prefill=prefill)
        compute = [0.0] * 5
        for operation in operations:
            us = in_layer_us(operation, gpu, stack)
            compute[operation.stage - 1] += us
            kernels[operation.kernel] = kernels.get(operation.kernel, 0.0) + us
            held = bound(operation, gpu, stack.curves[operation.kernel], stack.sustained)
            bounds[held] = bounds.get(held, 0.0) + us
        flights = [_flight(model, gpu, stack, library, cut, part.tokens / cut.tp, direction) for direction in Direction]
        c1, c2, c3, c4, c5 = compute
        batches.append(Stages((c1, c2, c3, c4, c5), flights[0], flights[1]))
    contention = library.sms / gpu.sms if schedule is not Schedule.NONE else 0.0
    span = layer_span(schedule, batches, contention)
    wire = "nvlink" if cut.ep <= gpu.nvlink_domain_gpus else "network"
    bounds[wire] = bounds.get(wire, 0.0) + span.dispatch_us + span.combine_us
    return _layer_time(span, kernels, bounds, stack, library)


def _flight(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    library: Exchange,
    cut: Parallelism,
    tokens: float,
    direction: Direction,
) -> Flight:
    dispatch_bytes, combine_bytes = token_bytes(model.hidden)
    traffic = Traffic(
        tokens * cut.imbalance,
        model.top_k,
        cut.ep,
        dispatch_bytes,
        combine_bytes,
        (model.top_groups, model.groups),
    )
    total, on_nvlink = exchange_us(library, traffic, gpu, direction)
    # NVLink stores run on the multiprocessors: nothing hides behind them unless the library keeps to a few.
    busy = 0.0 if library.nvlink_overlaps else on_nvlink
    return Flight(stack.launch_us + busy, total - busy)


def _layer_time(
    span: Span, kernels: dict[KernelClass, float], bounds: dict[str, float], stack: Stack, library: Exchange
) -> LayerTime:
    parts = {kernel.value: us for kernel, us in kernels.items()}
    variance = sum((us * stack.residual(kernel)) ** 2 for kernel, us in kernels.items())
    # Both directions err together: one library, one table.
    exposed = span.dispatch_us + span.combine_us
    variance += (max(exposed, 0.0) * library.residual) ** 2
    largest = max({**parts, "dispatch": span.dispatch_us, "combine": span.combine_us}.items(), key=lambda kv: kv[1])
    return LayerTime(
        span.total_us,
        variance**0.5,
        parts,
        span.dispatch_us,
        span.combine_us,
        span.contention_us,
        span.network_us,
        largest[0],
        bounds,
    )
