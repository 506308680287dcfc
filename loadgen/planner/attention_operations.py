"""Stages 1 and 2 of a layer: norms, projections and attention, for decode (absorbed) and prefill (multi-head)."""

from dataclasses import dataclass

from loadgen.planner.linear import linear_bytes, linear_precision
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.operations import KernelClass, Operation, collective, elementwise, gemm, grouped_gemm


@dataclass(frozen=True, slots=True)
class Queries:
    """What one instance attends with in one pass.

    Attributes:
        sequences: requests (decode) or prompts (prefill); may be fractional when a batch is an average.
        tokens_each: query tokens of each.
        cached_each: tokens already in the cache of each.
    """

    sequences: float
    tokens_each: float
    cached_each: float

    @property
    def tokens(self) -> float:
        return self.sequences * self.tokens_each

    @property
    def pairs(self) -> float:
        """(query, key) pairs under a causal mask."""
        n = self.tokens_each
        return self.sequences * (n * self.cached_each + n * (n + 1) / 2)

    @property
    def keys(self) -> float:
        return self.sequences * (self.cached_each + self.tokens_each)


def projection_operations(model: ModelShape, queries: Queries, tp: int) -> list[Operation]:
    """Stage 1: input norm, q and latent projections, rope and append. The latent projection is not sharded by TP."""
    m, h, heads = queries.tokens, model.hidden, model.heads / tp
    precision = linear_precision(model)
    operations = [elementwise("input norm", 1, m * h * _NORM_BYTES)]
    if not model.is_mla:
        out = (model.heads + 2 * model.kv_heads) * model.head_dim / tp
        operations.append(gemm("qkv", 1, m, out, h, linear_bytes(model, out, h), precision))
        operations.append(elementwise("rope, append", 1, 4 * m * out))
        return operations
    down = model.q_lora_rank + model.latent_values
    q_out = heads * model.qk_dim
    if model.q_lora_rank:
        operations.append(gemm("qkv_a", 1, m, down, h, linear_bytes(model, down, h), precision))
        operations.append(elementwise("low-rank norms", 1, m * down * 5))
        q = gemm("q_b", 1, m, q_out, model.q_lora_rank, linear_bytes(model, q_out, model.q_lora_rank), precision)
        operations.append(q)
    else:
        out = q_out + model.latent_values
        operations.append(gemm("q, kv_a", 1, m, out, h, linear_bytes(model, out, h), precision))
        operations.append(elementwise("latent norm", 1, m * model.latent_values * 5))
    rope = m * (heads * model.qk_rope_dim + model.latent_values) * 4
    operations.append(elementwise("rope, append", 1, rope))
    return operations


def decode_attention(model: ModelShape, queries: Queries, tp: int) -> list[Operation]:
    """Absorbed latent attention (DeepSeek-V2 paper, section 2.1): every head reads the same 576 values a token."""
    m, heads = queries.tokens, model.heads / tp
    if not model.is_mla:
        kv = model.kv_heads * model.head_dim / tp
        flops = 4 * heads * model.head_dim * queries.pairs
        moved = 4 * queries.keys * kv + 4 * m * heads * model.head_dim
        return [_attention("attention", KernelClass.MLA_DECODE, flops, moved, queries)]
    precision, rank, latent = linear_precision(model), model.kv_lora_rank, model.latent_values
    flops = 2 * heads * (latent + rank) * queries.pairs
    moved = 2 * queries.keys * latent + 2 * m * heads * (latent + rank)
    return [
        _per_head("absorb", 1, heads, m, rank, model.qk_nope_dim, model, precision),
        _attention("mla decode", KernelClass.MLA_DECODE, flops, moved, queries),
        _per_head("v up", 2, heads, m, model.v_dim, rank, model, precision),
    ]


def prefill_attention(model: ModelShape, queries: Queries, tp: int) -> list[Operation]:
    """Multi-head form: the latent of prefix and prompt is projected up to K and V, then ordinary causal attention."""
    m, heads = queries.tokens, model.heads / tp
    if not model.is_mla:
        kv = model.kv_heads * model.head_dim / tp
        flops = 4 * heads * model.head_dim * queries.pairs
        moved = 4 * queries.keys * kv + 4 * m * heads * model.head_dim
        return [_attention("attention", KernelClass.PREFILL_ATTENTION, flops, moved, queries)]
    wide = heads * (model.qk_nope_dim + model.v_dim)
    flops = 2 * heads * (model.qk_dim + model.v_dim) * queries.pairs
    moved = 2 * (queries.keys + m) * heads * (model.qk_dim + model.v_dim)
    weight = linear_bytes(model, wide, model.kv_lora_rank)
    return [
        gemm("kv_b", 1, queries.keys, wide, model.kv_lora_rank, weight, linear_precision(model)),
        _attention("mha prefill", KernelClass.PREFILL_ATTENTION, flops, moved, queries),
    ]


def output_operations(model: ModelShape, queries: Queries, tp: int) -> list[Operation]:
    """The rest of stage 2: output projection, post norm and gate. With TP each rank goes on with 1/tp of the tokens."""
    m, h = queries.tokens, model.hidden
    inner = model.heads * (model.v_dim if model.is_mla else model.head_dim) / tp
    share = m / tp
    operations = [
        elementwise("quantise o", 2, m * inner * 3),
        gemm("o_proj", 2, m, h, inner, linear_bytes(model, h, inner), linear_precision(model)),
    ]
    if tp > 1:
        operations.append(collective("reduce-scatter", 2, m * h * 2 * (tp - 1) / tp))
    operations.append(elementwise("post norm", 2, share * h * _NORM_BYTES))
    return operations


# bf16 residual and update in, bf16 residual and FP8 values out.
_NORM_BYTES = 7


def _per_head(
    name: str, stage: int, heads: float, rows: float, out: float, depth: float, model: ModelShape, precision: str
) -> Operation:
    weight = linear_bytes(model, out, depth)
    return grouped_gemm(name, stage, heads, rows, out, depth, weight, precision, routed=False, kernel=KernelClass.BMM)


def _attention(name: str, kernel: KernelClass, flops: float, moved: float, queries: Queries) -> Operation:
    length = 2 * queries.pairs / queries.tokens if queries.tokens else 0.0
    return Operation(name, 2, kernel, "bf16", flops, moved, padded_flops=flops, length=length)
