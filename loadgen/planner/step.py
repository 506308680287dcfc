"""One pass of the whole model: a decode step with its drafts, or a prefill pass."""

from dataclasses import dataclass

from loadgen.planner.attention_operations import Queries
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import LayerTime, Parallelism, decode_layer, dense_layer_us, in_layer_us, prefill_layer
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.operations import KernelClass, Operation, gemm
from loadgen.planner.schedule import Schedule
from loadgen.planner.stacks import Stack


@dataclass(frozen=True, slots=True)
class StepTime:
    """A pass of all layers.

    Attributes:
        total_us: best estimate, `sigma_us` its standard deviation.
        layer: one mixture-of-experts layer of it.
        dense_us, draft_us, head_us: leading dense layers; drafting; head and sampling.
    """

    total_us: float
    sigma_us: float
    layer: LayerTime
    dense_us: float
    draft_us: float
    head_us: float


def decode_step(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    *,
    batch: int,
    cached_tokens: float,
    schedule: Schedule,
    draft_tokens: int = 1,
) -> StepTime:
    """One step: every request's `draft_tokens + 1` positions verified, then as many drafts made anew.

    The first draft pass sees all verified positions, each later one a single position a request. A draft pass is one
    layer with its input projection and the head.
    """
    query = draft_tokens + 1
    layer = decode_layer(
        model, gpu, stack, cut, batch=batch, query_tokens=query, cached_tokens=cached_tokens, schedule=schedule
    )
    queries = Queries(batch, query, cached_tokens)
    dense = model.dense_layers * dense_layer_us(model, gpu, stack, cut, queries, prefill=False)
    head = head_us(model, gpu, stack, cut, batch * query)
    draft = 0.0
    if draft_tokens and model.mtp_layers:
        first = draft_pass_us(model, gpu, stack, cut, batch, query, cached_tokens)
        later = draft_pass_us(model, gpu, stack, cut, batch, 1, cached_tokens) if draft_tokens > 1 else 0.0
        draft = first + (draft_tokens - 1) * later
    return _step(model, stack, layer, dense, draft, head)


def prefill_pass(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    *,
    tokens: int,
    prompt_tokens: float,
    cached_tokens: float = 0.0,
    schedule: Schedule = Schedule.DUAL_MICROBATCH,
) -> StepTime:
    """One pass over `tokens` new tokens an instance; only the last position of each prompt meets the head."""
    layer = prefill_layer(
        model,
        gpu,
        stack,
        cut,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        schedule=schedule,
    )
    queries = Queries(tokens / prompt_tokens, prompt_tokens, cached_tokens)
    dense = model.dense_layers * dense_layer_us(model, gpu, stack, cut, queries, prefill=True)
    head = head_us(model, gpu, stack, cut, tokens / prompt_tokens)
    return _step(model, stack, layer, dense, 0.0, head)


def head_us(model: ModelShape, gpu: Hardware, stack: Stack, cut: Parallelism, tokens: float) -> float:
    """The bf16 output matrix and sampling. The matrix is split over the ranks of a node, which share their tokens."""
    ranks = min(cut.ep, gpu.gpus_per_node)
    out = model.vocabulary / ranks
    shared = tokens * ranks / cut.tp
    logits = gemm("head", 0, shared, out, model.hidden, 2 * out * model.hidden, "bf16")
    sample = Operation("sample", 0, KernelClass.SAMPLING, "bf16", 0.0, tokens * model.vocabulary * 4)
    return in_layer_us(logits, gpu, stack) + in_layer_us(sample, gpu, stack)


def draft_pass_us(
    model: ModelShape, gpu: Hardware, stack: Stack, cut: Parallelism, batch: int, query: int, cached_tokens: float
) -> float:
    """The MTP module once: [2 hidden, hidden] projection, one layer without overlap, the head again."""
    tokens = batch * query
    h = model.hidden
    projection = gemm("eh_proj", 0, tokens, h, 2 * h, 2 * 2 * h * h, "bf16")
    layer = decode_layer(
        model,
        gpu,
        stack,
        cut,
        batch=batch,
        query_tokens=query,
        cached_tokens=cached_tokens,
        schedule=Schedule.DISPATCH_OVERLAP,
    )
    return in_layer_us(projection, gpu, stack) + layer.total_us + head_us(model, gpu, stack, cut, tokens)


def _step(
    model: ModelShape, stack: Stack, layer: LayerTime, dense_us: float, draft_us: float, head_us: float
) -> StepTime:
    # Layers err together: their curves are the same. The rest gets the layer's relative error, and the whole what
    # published systems show on top.
    layers_us = model.moe_layers * layer.total_us
    relative = (layer.sigma_us / layer.total_us if layer.total_us else 0.0) ** 2 + stack.system_residual**2
    total = layers_us + dense_us + draft_us + head_us
    return StepTime(total, relative**0.5 * total, layer, dense_us, draft_us, head_us)
