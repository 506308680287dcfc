"""One whole MoE layer of a prefill from these kernels, without communication, over whole prompts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.bench import inputs
from kernels.bench.inputs import Angles, Quantised
from kernels.bench.layer import EPS, LayerWeights, route, routed, shared_stream
from kernels.fp8_gemm import fp8_gemm
from kernels.fp8_gemm_deepgemm import CONTIGUOUS_ALIGN, grouped_gemm_contiguous
from kernels.latent import split_qkv_a
from kernels.mla_prefill import RaggedPrefill
from kernels.pdl import in_order
from kernels.permute import permute_rows, permute_scales, row_experts, sort_pairs, unpermute
from kernels.prefill_heads import assemble_heads
from kernels.quant_fp8 import add_rms_norm_quant, quantize_per_token, rms_norm_quant
from kernels.silu_mul_quant import silu_mul_quant


@dataclass(frozen=True)
class PrefillStep:
    """Whole prompts without cached context, T tokens together."""

    attention: RaggedPrefill
    cache: Tensor
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    angles: Angles


def prefill_step(prompts: int, tokens: int, angles: Angles) -> PrefillStep:
    """`prompts` of `tokens` each; their latent goes to the first blocks of a pool."""
    total = prompts * tokens
    attention = RaggedPrefill(inputs.device())
    lens = torch.full((prompts,), tokens, dtype=torch.int32)
    attention.plan(
        lens,
        lens,
        heads=inputs.HEADS,
        key_width=inputs.NOPE + inputs.ROPE,
        value_width=inputs.VALUE,
        sm_scale=inputs.SM_SCALE,
        causal=True,
    )
    return PrefillStep(
        attention=attention,
        cache=inputs.latent_pool(-(-total // inputs.BLOCK_TOKENS)),
        positions=torch.arange(tokens, device=inputs.device()).repeat(prompts),
        slots=torch.arange(total, device=inputs.device()),
        angles=angles,
    )


def prefill_layer(hidden: Tensor, w: LayerWeights, kv_b: Quantised, step: PrefillStep) -> Tensor:
    """Run the layer on the residual stream `hidden` [T, HIDDEN]; kv_b: [heads (NOPE + VALUE), RANK]."""
    tokens = hidden.shape[0]
    cos, sin = step.angles.cos, step.angles.sin
    x, x_scale = rms_norm_quant(hidden, w.input_norm, EPS)
    qkv = fp8_gemm(x, x_scale, *w.qkv_a)
    latent = hidden.new_empty((tokens, inputs.RANK + inputs.ROPE))
    q, q_scale = split_qkv_a(qkv, w.q_norm, w.kv_norm, EPS, cos, sin, step.positions, step.cache, step.slots, latent)
    queries = fp8_gemm(q, q_scale, *w.q_b).view(tokens, inputs.HEADS, -1)
    up = fp8_gemm(*quantize_per_token(latent[:, : inputs.RANK]), *kv_b).view(tokens, inputs.HEADS, -1)
    keys = assemble_heads(queries, up, latent[:, inputs.RANK :], cos, sin, step.positions)
    attended, _ = step.attention.run(queries, keys, up[..., inputs.NOPE :])
    projected = fp8_gemm(*quantize_per_token(attended.flatten(1)), *w.o)
    hidden, normed, x, x_scale = add_rms_norm_quant(projected, hidden, w.post_norm, EPS)
    return after_experts(hidden, normed, x, x_scale, w)


def after_experts(hidden: Tensor, normed: Tensor, x: Tensor, x_scale: Tensor, w: LayerWeights) -> Tensor:
    """Router, experts over rows copied next to each other, and combine.

    The shared expert runs on a second stream: the router and the copying keep the memory busy, it the tensor cores.
    """
    main = torch.cuda.current_stream()
    beside = shared_stream(hidden.device)
    beside.wait_stream(main)
    with torch.cuda.stream(beside):
        both = fp8_gemm(x, x_scale, w.gate_up[0][-1], w.gate_up[1][-1])
        inner, inner_scale = silu_mul_quant(both[None])
        shared = fp8_gemm(inner[0], inner_scale[0], w.down[0][-1], w.down[1][-1])
    ids, weights, counts = route(normed, w)
    rows, sources, counts = sort_pairs(ids, w.experts, CONTIGUOUS_ALIGN, counts)
    total = sources.shape[0]
    owners = row_experts(counts, total, CONTIGUOUS_ALIGN)
    gate_up, down = routed(w.gate_up), routed(w.down)
    both = grouped_gemm_contiguous(permute_rows(x, rows, total), permute_scales(x_scale, sources), *gate_up, owners)
    inner, inner_scale = silu_mul_quant(both[None])
    out = grouped_gemm_contiguous(inner[0], inner_scale[0], *down, owners)
    main.wait_stream(beside)
    with in_order():
        return unpermute(out, rows, weights, hidden, shared)
