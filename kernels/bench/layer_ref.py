"""The decode layer through the references, op by op in torch: the oracle of `layer.decode_layer`, half by half."""

import torch
from torch import Tensor

from kernels.absorb_ref import absorb_query, project_value
from kernels.bench import inputs
from kernels.bench.layer import EPS, SCALING, TOP_K, DecodeStep, LayerWeights
from kernels.fp8_gemm_ref import fp8_gemm
from kernels.gate_ref import project_gate
from kernels.grouped_gemm_ref import grouped_gate_up, grouped_gemm
from kernels.latent_ref import split_qkv_a
from kernels.mla_decode_ref import mla_decode
from kernels.permute_ref import permute, unpermute
from kernels.quant_fp8_ref import add_rms_norm_quant, rms_norm_quant


def hidden_after_attention(hidden: Tensor, w: LayerWeights, step: DecodeStep) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `layer.hidden_after_attention`. Writes the new latent into the cache as well."""
    x, x_scale = rms_norm_quant(hidden, w.input_norm, EPS)
    qkv = fp8_gemm(x, x_scale, *w.qkv_a)
    q, q_scale = split_qkv_a(
        qkv, w.q_norm, w.kv_norm, EPS, step.angles.cos, step.angles.sin, step.positions, step.cache, step.slots
    )
    heads = fp8_gemm(q, q_scale, *w.q_b).view(-1, inputs.HEADS, inputs.NOPE + inputs.ROPE)
    absorbed = absorb_query(heads, *w.k_b, step.angles.cos, step.angles.sin, step.positions)
    query_lens = torch.full_like(step.total_lens, step.query_len)
    attended = mla_decode(
        absorbed[..., : inputs.RANK],
        absorbed[..., inputs.RANK :],
        step.cache,
        step.block_tables,
        query_lens,
        step.total_lens,
        inputs.SM_SCALE,
    )
    values, values_scale = project_value(attended, *w.v_b)
    return add_rms_norm_quant(fp8_gemm(values, values_scale, *w.o), hidden, w.post_norm, EPS)


def hidden_after_experts(
    hidden: Tensor, normed: Tensor, x: Tensor, x_scale: Tensor, w: LayerWeights
) -> tuple[Tensor, Tensor]:
    """As `layer.hidden_after_experts`; and the routed experts of each token, ids [T, TOP_K]."""
    ids, weights, _ = project_gate(
        normed,
        w.router,
        w.bias,
        scoring="sigmoid",
        n_group=8,
        topk_group=4,
        top_k=TOP_K,
        norm_topk_prob=True,
        routed_scaling_factor=SCALING,
        shared=1,
    )
    tokens = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
    sources, counts, rows = permute(tokens, ids, w.experts + 1)
    inner, inner_scale = grouped_gate_up(x, x_scale, *w.gate_up, counts, sources[:, 0], align=1)
    out = unpermute(grouped_gemm(inner, inner_scale, *w.down, counts, align=1), rows, weights, hidden)
    return out, ids[:, :TOP_K]
