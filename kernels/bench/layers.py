"""Whole layers against the peer measured on the same kind of card, kernel by kernel."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kernels.bench import inputs
from kernels.bench.inputs import Angles
from kernels.bench.layer import LayerWeights, decode_layer, decode_step, planned_attention, random_weights, route
from kernels.bench.layer_check import check_decode_layer, check_experts
from kernels.bench.prefill_layer import prefill_layer, prefill_step
from kernels.bench.record import Limits, Result, Work, result
from kernels.bench.timing import capture, time_us

CACHED = 5000
# us of one MoE layer of vLLM 0.26.0 on one H200 (context 5,000, query 1): (experts, batch)
PEER_US = {(32, 1): 240.0, (32, 32): 593.0, (32, 128): 939.0, (256, 1): 233.0, (256, 32): 1905.0, (256, 128): 3102.0}
TARGETS_US = {(32, 1): 192.0, (32, 32): 504.0, (32, 128): 826.0, (256, 1): 233.0, (256, 32): 1905.0, (256, 128): 3102.0}
PREFILL_PEER_US = 26100.0
PREFILL_TARGET_US = 0.9 * PREFILL_PEER_US
DENSE_BYTES = 2112 * 7168 + 24576 * 1536 + 2 * 128 * 128 * 512 + 7168 * 16384
EXPERT_BYTES = 3 * inputs.HIDDEN * inputs.INTERMEDIATE
CHECKED_REQUESTS = (1, 8, 32, 128)
CHECKED_ROWS = 300


def decode_work(hidden: Tensor, w: LayerWeights, requests: int, query_len: int) -> Work:
    """Weights that this routing touches, latent read once, and the operations of attention and products."""
    tokens = requests * query_len
    counts = route(hidden, w)[2]
    busy, pairs = int((counts > 0).sum()) + 1, int(counts.sum()) + tokens  # and the shared expert
    router = 2 * w.experts * inputs.HIDDEN
    latent = requests * (CACHED + query_len) * (inputs.RANK + inputs.ROPE) * 2
    return Work(
        DENSE_BYTES + busy * EXPERT_BYTES + router + latent, 2.0 * (tokens * DENSE_BYTES + pairs * EXPERT_BYTES)
    )


def attention_floor_us(requests: int, query_len: int, limits: Limits) -> float:
    """What attention's operations take above reading its latent."""
    total = CACHED + query_len
    flops = 2.0 * requests * query_len * inputs.HEADS * total * (2 * inputs.RANK + inputs.ROPE)
    latent = requests * total * (inputs.RANK + inputs.ROPE) * 2
    return max(flops / limits.bf16_flops - latent / limits.bytes_per_s, 0.0) * 1e6


def bench_decode_layers(limits: Limits, experts: int, profiles: dict[str, object]) -> Iterator[Result]:
    w = random_weights(experts)
    turn = inputs.angles()
    for requests, query_len in ((1, 1), (8, 1), (32, 1), (64, 1), (128, 1), (32, 2), (128, 2)):
        if experts <= 32 or requests in (1, 32, 128):
            yield decode(limits, w, requests, query_len, turn, profiles)
            torch.cuda.empty_cache()


def decode(
    limits: Limits, w: LayerWeights, requests: int, query_len: int, turn: Angles, profiles: dict[str, object]
) -> Result:
    """One batch size: checked against the references where they are affordable, timed, and taken apart."""
    step = decode_step(requests, query_len, CACHED, turn)
    hidden = inputs.normal(requests * query_len, inputs.HIDDEN)
    attention = planned_attention(step)
    experts = w.experts
    us = time_us([lambda: decode_layer(hidden, w, step, attention)], launches=6)
    work = decode_work(hidden, w, requests, query_len)
    profiles[f"decode, {experts} experts, {requests} x {query_len}"] = {
        "floor_us": round(work.floor_us(limits) + attention_floor_us(requests, query_len, limits), 1),
        "kernels": timeline(lambda: decode_layer(hidden, w, step, attention)),
    }
    peer = PEER_US.get((experts, requests)) if query_len == 1 else None
    return result(
        "MoE decode layer",
        "tandem",
        {"experts": experts, "requests": requests, "query": query_len, "cached": CACHED},
        us,
        work,
        limits,
        target_us=TARGETS_US.get((experts, requests)) if query_len == 1 else None,
        baseline={"vLLM 0.26.0": peer} if peer else {},
    )


def check_layers(errors: dict[str, object]) -> None:
    """Compare decode layers of 32 experts with their references, and graphs of them with eager runs; fills `errors`.

    Raises:
        ArithmeticError: the layer is wrong; what was measured means nothing.
    """
    w, turn = random_weights(32), inputs.angles()
    for requests in CHECKED_REQUESTS:
        step = decode_step(requests, 1, CACHED, turn)
        hidden = inputs.normal(requests, inputs.HIDDEN)
        errors[f"decode, 32 experts, {requests} x 1"] = check_decode_layer(hidden, w, step, planned_attention(step))
    errors["experts of a prefill, 32 experts"] = check_experts(inputs.normal(CHECKED_ROWS, inputs.HIDDEN), w)


def bench_prefill_layers(limits: Limits, profiles: dict[str, object]) -> Iterator[Result]:
    w = random_weights(32)
    kv_b = inputs.weight(inputs.HEADS * (inputs.NOPE + inputs.VALUE), inputs.RANK)
    turn = inputs.angles()
    for prompts, tokens in ((1, 4096), (4, 4096)):
        yield prefill(limits, w, kv_b, prompts, tokens, turn, profiles)
        torch.cuda.empty_cache()


def prefill(
    limits: Limits,
    w: LayerWeights,
    kv_b: inputs.Quantised,
    prompts: int,
    tokens: int,
    turn: Angles,
    profiles: dict[str, object],
) -> Result:
    step = prefill_step(prompts, tokens, turn)
    total = prompts * tokens
    hidden = inputs.normal(total, inputs.HIDDEN)
    us = time_us([lambda: prefill_layer(hidden, w, kv_b, step)], launches=1)
    products = 2.0 * total * (DENSE_BYTES + 9 * EXPERT_BYTES)
    attention = float(prompts) * tokens * tokens * inputs.HEADS * (inputs.NOPE + inputs.ROPE + inputs.VALUE)
    # Attention runs at the bf16 rate: counted as so many more FP8 operations.
    work = Work(0, products + attention * limits.fp8_flops / limits.bf16_flops)
    profiles[f"prefill, 32 experts, {prompts} x {tokens}"] = {
        "floor_us": round(work.floor_us(limits), 1),
        "kernels": timeline(lambda: prefill_layer(hidden, w, kv_b, step)),
    }
    whole = total == 16384
    return result(
        "MoE prefill layer",
        "tandem",
        {"experts": 32, "prompts": prompts, "tokens": tokens},
        us,
        work,
        limits,
        target_us=PREFILL_TARGET_US if whole else None,
        baseline={"vLLM 0.26.0": PREFILL_PEER_US} if whole else {},
    )


def timeline(call: Callable[[], object]) -> list[dict[str, object]]:
    """Kernels of the second of two calls in one graph, in order.

    `us` is the time a kernel adds to the end of the one before; `gap_us` the idle time before it. Kernels launched
    early wait inside, so they have no gap.
    """
    graph = capture([call], 2)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        graph.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in trace.events()
        if event.device_type == DeviceType.CUDA
    )
    rows, last = [], spans[0][0]
    for start, end, name in spans:
        rows.append(
            {
                "kernel": name[:60],
                "us": round(max(end - max(start, last), 0), 2),
                "gap_us": round(max(start - last, 0), 2),
            }
        )
        last = max(last, end)
    return rows[len(rows) // 2 :]
