"""Everything we have measured on two H200s that is more than one kernel or one exchange, and the planner beside it.

Kernels and exchanges taken with them are rows of `kernel_points` and `exchange_points`. None of these is fitted.
`MACHINE` holds what has no prediction of its own: limits of the machine, other libraries' times, contention.
"""

from dataclasses import dataclass

from loadgen.planner.attention_operations import Queries
from loadgen.planner.communication import Direction, Traffic, exchange_us, token_bytes
from loadgen.planner.efficiency import fastest_us
from loadgen.planner.expert_operations import expert_load, routed_operations
from loadgen.planner.figure import OUR_H200, Figure, measured
from loadgen.planner.fit import Constants
from loadgen.planner.hardware import hardware
from loadgen.planner.kernel_fit import Residual
from loadgen.planner.layer import Parallelism, in_layer_us, layer_operations
from loadgen.planner.linear import linear_bytes
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.operations import grouped_gemm

# Routed experts of one V3 layer over two GPUs: (tokens a rank, us) with DeepEP V1 and masked DeepGEMM.
ROUTED_EP2 = (
    (16, 961),
    (64, 1502),
    (128, 1538),
    (256, 1580),
    (1024, 1803),
    (4096, 3996),
)
# vLLM 0.26.0 on one H200, an EP8 rank's slice without exchanges, context 5,000, query 1: (batch, us a MoE layer).
VLLM_SLICE = ((1, 240), (32, 593), (128, 939))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of the machine or of somebody else's software on it."""

    what: str
    unit: str
    figure: Figure


# Both grouped GEMMs of 32 experts with 32 rows each, contiguous layout: rows aligned to 128 are computed and moved.
CONTIGUOUS_32X32_US = 495
MACHINE = (
    Measurement("device copy, read and write", "TB/s", measured(4.28)),
    Measurement("bf16 matrix product", "TFLOP/s", measured(785)),
    Measurement("peer copy GPU to GPU", "GB/s", measured(390)),
    Measurement("NVSHMEM host put", "GB/s", measured(387)),
    Measurement("Triton kernel storing to peer memory", "GB/s", measured(342)),
    Measurement("latent handoff of 5,000 tokens (351 MB), 4,819 descriptors", "ms", measured(31)),
    Measurement("latent handoff of 5,000 tokens (351 MB), 79 descriptors", "ms", measured(1.8)),
    Measurement("prefill 8 x 4,096 tokens, vLLM, EP8 slice", "tokens/s", measured(103_000)),
    Measurement("grouped GEMM beside DeepEP dispatch at 20 SMs, slower by", "share", measured(0.15)),
    Measurement("dispatch beside that grouped GEMM, slower by a factor of", "", measured(3.5)),
    Measurement("dispatch, DeepEP V1 normal at 20 SMs, 256 tokens", "us", measured(52.2)),
    Measurement("combine, DeepEP V1 normal at 20 SMs, 256 tokens", "us", measured(57.3)),
    Measurement("dispatch, DeepEP V1 low latency, 256 tokens", "us", measured(42.5)),
    Measurement("combine, DeepEP V1 low latency, 256 tokens", "us", measured(76.0)),
    Measurement("dispatch, the same bytes by NCCL, 256 tokens", "us", measured(22)),
    Measurement("combine, the same bytes by NCCL, 256 tokens", "us", measured(29)),
    *(
        Measurement(f"routed experts EP2, fused kernel, {tokens} tokens a rank", "us", measured(us))
        for tokens, us in ((16, 902), (64, 1431), (128, 1491), (256, 1691), (1024, 1895), (4096, 4620))
    ),
    Measurement("latent attention, FlashInfer fa2, 128 requests, query 2", "us", measured(1350)),
    Measurement("both grouped GEMMs, 32 x 32 rows, Triton (vLLM)", "us", measured(388)),
)


def composite_residuals(constants: Constants) -> list[Residual]:
    """Routed experts over two GPUs, and one rank's layer beside vLLM's."""
    gpu, model, stack = hardware("h200"), model_shape("deepseek-v3"), constants.stack("measured-2026")
    exchange = constants.exchanges["deepep-normal-h200"]
    rows = []
    for tokens, known in ROUTED_EP2:
        load = expert_load(model, tokens, 2)
        kernels = sum(fastest_us(o, gpu, stack.curves[o.kernel]) for o in routed_operations(model, load))
        traffic = Traffic(tokens, model.top_k, 2, *token_bytes(model.hidden))
        moved = sum(exchange_us(exchange, traffic, gpu, direction)[0] for direction in Direction)
        what = f"routed experts, EP2, {tokens} tokens a rank"
        rows.append(Residual("DeepEP + DeepGEMM", what, f"h200, {OUR_H200}", known, kernels + moved, False))
    h, inner = model.hidden, model.expert_intermediate
    padded = [
        grouped_gemm("contiguous", 4, 32, 128, out, depth, linear_bytes(model, out, depth), routed=False)
        for out, depth in ((2 * inner, h), (h, inner))
    ]
    us = sum(fastest_us(o, gpu, stack.curves[o.kernel]) for o in padded)
    what = "both grouped GEMMs, 32 x 32 rows, contiguous"
    rows.append(Residual("DeepGEMM", what, f"h200, {OUR_H200}", CONTIGUOUS_32X32_US, us, False))
    for batch, known in VLLM_SLICE:
        # The slice holds 32 experts and routes all its tokens to them: EP8 without the exchange. vLLM runs the shared
        # expert beside the routed ones.
        operations = layer_operations(model, Queries(batch, 1, 5000), Parallelism(8, chance=False))
        ours = sum(in_layer_us(operation, gpu, stack) for operation in operations if operation.stage != 3)
        what = f"one MoE layer, EP8 slice, batch {batch}"
        rows.append(Residual("vLLM 0.26.0", what, f"h200, {OUR_H200}", known, ours, False))
    return rows
