"""One whole MoE layer from these kernels, without communication: what a rank computes in stages 1 to 5.

The shared expert runs on a second stream beside the router, whose launches leave memory idle; the two meet again in the
weighted combine.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.absorb import absorb_query, project_value
from kernels.bench import inputs
from kernels.bench.inputs import Angles, Quantised
from kernels.fp8_gemm import fp8_gemm, fp8_gemm_partial
from kernels.gate import project_gate
from kernels.grouped_gemm import grouped_gemm
from kernels.grouped_gemm_stream import ROW_ALIGN
from kernels.latent import split_qkv_a
from kernels.mla_decode import AttentionShape, DecodeAttention
from kernels.pdl import in_order
from kernels.permute import sort_pairs, unpermute
from kernels.quant_fp8 import add_rms_norm_quant, rms_norm_quant
from kernels.silu_mul_quant import silu_mul_quant

EPS = 1e-6
TOP_K = 8
FEW_TOKENS = 16
SCALING = 2.5


@dataclass(frozen=True)
class LayerWeights:
    """One layer: FP8 with block scales, norms and router in bf16. The last expert is the shared one."""

    input_norm: Tensor
    qkv_a: Quantised
    q_norm: Tensor
    kv_norm: Tensor
    q_b: Quantised
    k_b: Quantised  # [heads, RANK, NOPE], scale [heads, RANK / 128]
    v_b: Quantised  # [heads, VALUE, RANK], scale [heads, RANK / 128]
    o: Quantised
    post_norm: Tensor
    router: Tensor  # [experts, HIDDEN]
    bias: Tensor  # fp32 [experts]
    gate_up: Quantised  # [experts + 1, 2 INTERMEDIATE, HIDDEN]
    down: Quantised  # [experts + 1, HIDDEN, INTERMEDIATE]

    @property
    def experts(self) -> int:
        return self.router.shape[0]


def random_weights(experts: int) -> LayerWeights:
    """A layer with `experts` routed experts and one shared one."""

    def norm(n: int) -> Tensor:
        return (1 + 0.1 * torch.randn(n, device=inputs.device())).to(inputs.BF16)

    def per_head(rows: int, k: int) -> Quantised:
        w, _ = inputs.weight(inputs.HEADS, rows, k)
        return w, (torch.rand((inputs.HEADS, inputs.RANK // 128), device=inputs.device()) + 0.5) * k**-0.5

    hidden, router_std = inputs.HIDDEN, inputs.HIDDEN**-0.5
    return LayerWeights(
        input_norm=norm(hidden),
        qkv_a=inputs.weight(inputs.Q_LORA + inputs.RANK + inputs.ROPE, hidden),
        q_norm=norm(inputs.Q_LORA),
        kv_norm=norm(inputs.RANK),
        q_b=inputs.weight(inputs.HEADS * (inputs.NOPE + inputs.ROPE), inputs.Q_LORA),
        k_b=per_head(inputs.RANK, inputs.NOPE),
        v_b=per_head(inputs.VALUE, inputs.RANK),
        o=inputs.weight(hidden, inputs.HEADS * inputs.VALUE),
        post_norm=norm(hidden),
        router=(torch.randn((experts, hidden), device=inputs.device()) * router_std).to(inputs.BF16),
        bias=torch.randn(experts, device=inputs.device()) * 0.01,
        gate_up=inputs.weight(experts + 1, 2 * inputs.INTERMEDIATE, hidden),
        down=inputs.weight(experts + 1, hidden, inputs.INTERMEDIATE),
    )


@dataclass(frozen=True)
class DecodeStep:
    """What a step knows before it runs: T = requests x query tokens, on the device."""

    cache: Tensor
    block_tables: Tensor  # int32 [requests, blocks]
    total_lens: Tensor  # int32 [requests]
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    angles: Angles
    query_len: int


def planned_attention(step: DecodeStep) -> DecodeAttention:
    """Attention planned for `step`; the plan outlives the layer."""
    requests, blocks = step.block_tables.shape
    shape = AttentionShape(inputs.HEADS, inputs.RANK, inputs.ROPE, inputs.BLOCK_TOKENS, inputs.SM_SCALE)
    attention = DecodeAttention(inputs.device(), shape, requests, step.query_len, blocks)
    query_lens = torch.full((requests,), step.query_len, dtype=torch.int32)
    attention.plan(step.block_tables.cpu(), query_lens, step.total_lens.cpu())
    return attention


def decode_layer(hidden: Tensor, w: LayerWeights, step: DecodeStep, attention: DecodeAttention) -> Tensor:
    """Run the layer on the residual stream `hidden` [T, HIDDEN]; returns the new one."""
    return hidden_after_experts(*hidden_after_attention(hidden, w, step, attention), w)


def hidden_after_attention(
    hidden: Tensor, w: LayerWeights, step: DecodeStep, attention: DecodeAttention
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`hidden` plus attention, the same normed, and that quantised with its scale."""
    q, q_scale = first_projection(hidden, w, step)
    heads = fp8_gemm(q, q_scale, *w.q_b).view(-1, inputs.HEADS, inputs.NOPE + inputs.ROPE)
    turn = step.angles
    absorbed = absorb_query(heads, *w.k_b, turn.cos, turn.sin, step.positions, early=attention.dependent)
    latent = attention.run(absorbed, step.cache)
    with in_order(not attention.dependent):
        values, values_scale = project_value(latent, *w.v_b)
    attended = fp8_gemm_partial(values, values_scale, *w.o)
    return add_rms_norm_quant(attended, hidden, w.post_norm, EPS)


def hidden_after_experts(hidden: Tensor, normed: Tensor, x: Tensor, x_scale: Tensor, w: LayerWeights) -> Tensor:
    """Router, experts and combine: `hidden` plus the weighted experts of `normed`, whose FP8 form is `x`."""
    main = torch.cuda.current_stream()
    beside = shared_stream(hidden.device)
    beside.wait_stream(main)
    with torch.cuda.stream(beside):
        with in_order():
            both = fp8_gemm(x, x_scale, w.gate_up[0][-1], w.gate_up[1][-1])
        inner, inner_scale = silu_mul_quant(both[None])
        shared = fp8_gemm(inner[0], inner_scale[0], w.down[0][-1], w.down[1][-1])
    ids, weights, counts = route(normed, w)
    rows, sources, counts = sort_pairs(ids, w.experts, ROW_ALIGN, counts)
    gate_up, down = routed(w.gate_up), routed(w.down)
    busiest = 2 * -(-ids.numel() // w.experts)
    # With few tokens the shared expert needs the multiprocessors that programs waiting for the routing would hold.
    with in_order(hidden.shape[0] <= FEW_TOKENS):
        both = grouped_gemm(x, x_scale, *gate_up, counts, sources, expected_rows=busiest)
    inner, inner_scale = silu_mul_quant(both[None])
    out = grouped_gemm(inner[0], inner_scale[0], *down, counts, expected_rows=busiest)
    main.wait_stream(beside)
    with in_order():
        return unpermute(out, rows, weights, hidden, shared)


def first_projection(hidden: Tensor, w: LayerWeights, step: DecodeStep) -> Quantised:
    """Input norm to q's quantised latent, and the key's latent into the cache."""
    x, x_scale = rms_norm_quant(hidden, w.input_norm, EPS)
    return split_qkv_a(
        fp8_gemm_partial(x, x_scale, *w.qkv_a),
        w.q_norm,
        w.kv_norm,
        EPS,
        step.angles.cos,
        step.angles.sin,
        step.positions,
        step.cache,
        step.slots,
    )


def routed(weight: Quantised) -> Quantised:
    """All but the shared expert, which is the last."""
    return weight[0][:-1], weight[1][:-1]


@lru_cache(maxsize=4)
def shared_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which the shared expert runs beside the router."""
    return torch.cuda.Stream(device)


def route(normed: Tensor, w: LayerWeights, shared: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, weights and counts; with `shared` the last expert is among them for every token."""
    return project_gate(
        normed,
        w.router,
        w.bias,
        scoring="sigmoid",
        n_group=8,
        topk_group=4,
        top_k=TOP_K,
        norm_topk_prob=True,
        routed_scaling_factor=SCALING,
        shared=shared,
    )


def decode_step(requests: int, query_len: int, cached: int, angles: Angles) -> DecodeStep:
    """`requests` with `cached` tokens each in random blocks of a pool, and `query_len` new ones."""
    total = cached + query_len
    each = -(-total // inputs.BLOCK_TOKENS)
    blocks = max(requests * each, 1024)
    tables = inputs.block_tables(requests, total, blocks)
    positions = torch.arange(cached, total).repeat(requests)
    block = tables.long().repeat_interleave(query_len, 0).gather(1, (positions // inputs.BLOCK_TOKENS)[:, None])[:, 0]
    return DecodeStep(
        cache=inputs.latent_pool(blocks),
        block_tables=tables.to(inputs.device()),
        total_lens=torch.full((requests,), total, dtype=torch.int32, device=inputs.device()),
        positions=positions.to(inputs.device()),
        slots=(block * inputs.BLOCK_TOKENS + positions % inputs.BLOCK_TOKENS).to(inputs.device()),
        angles=angles,
        query_len=query_len,
    )
