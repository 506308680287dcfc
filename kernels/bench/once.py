"""Every kernel behind a target once, for a profiler that reads the chip's counters (`make bench-counters`)."""

from collections.abc import Callable, Iterator

import torch

from kernels.bench import inputs
from kernels.bench.attention import CACHED
from kernels.bench.experts import padded
from kernels.fp8_gemm import fp8_gemm, fp8_gemm_partial
from kernels.grouped_gemm import grouped_gemm
from kernels.mla_decode import AttentionShape, DecodeAttention
from kernels.mla_prefill import RaggedPrefill
from kernels.quant_fp8 import rms_norm_quant
from kernels.silu_mul_quant import silu_mul_quant


def run_once() -> Iterator[str]:
    """Run each out of a cold L2; yields its name before."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=inputs.device())
    for name, prepare in {
        "norm + qkv_a, 64 rows": _normed,
        "q_b, 256 rows": lambda: _product(256, 24576, 1536),
        "o_proj, 128 rows": lambda: _product(128, 7168, 16384),
        "both products of 32 experts, 64 rows": _experts,
        "SwiGLU + quantisation, 8 x 4,096": _silu,
        "MLA decode, 128 requests, query 2": _decode,
        "MHA prefill, 8,192 tokens": _prefill,
    }.items():
        call = prepare()
        flush.fill_(1)
        yield name
        call()
        torch.cuda.synchronize()


def _normed() -> Callable[[], object]:
    x, norm, w = inputs.normal(64, inputs.HIDDEN), inputs.normal(inputs.HIDDEN), inputs.weight(2112, inputs.HIDDEN)
    return lambda: fp8_gemm_partial(*rms_norm_quant(x, norm, 1e-6), *w)


def _product(rows: int, columns: int, inner: int) -> Callable[[], object]:
    x, w = inputs.activation(rows, inner), inputs.weight(columns, inner)
    return lambda: fp8_gemm(*x, *w)


def _experts() -> Callable[[], object]:
    experts, rows = 32, 64
    gate_up = inputs.weight(experts, 2 * inputs.INTERMEDIATE, inputs.HIDDEN)
    down = inputs.weight(experts, inputs.HIDDEN, inputs.INTERMEDIATE)
    x, inner = padded(experts, rows, inputs.HIDDEN), padded(experts, rows, inputs.INTERMEDIATE)
    counts = torch.full((experts,), rows, dtype=torch.int32, device=inputs.device())

    def both():
        grouped_gemm(*x, *gate_up, counts, expected_rows=rows)
        grouped_gemm(*inner, *down, counts, expected_rows=rows)

    return both


def _silu() -> Callable[[], object]:
    x = inputs.normal(8, 4096, 2 * inputs.INTERMEDIATE)
    counts = torch.full((8,), 4096, dtype=torch.int32, device=inputs.device())
    return lambda: silu_mul_quant(x, counts)


def _decode() -> Callable[[], object]:
    requests, query_len, total = 128, 2, CACHED + 2
    blocks = requests * -(-total // inputs.BLOCK_TOKENS)
    tables = inputs.block_tables(requests, total, blocks)
    shape = AttentionShape(inputs.HEADS, inputs.RANK, inputs.ROPE, inputs.BLOCK_TOKENS, inputs.SM_SCALE)
    attention = DecodeAttention(inputs.device(), shape, requests, query_len, tables.shape[1])
    lens = torch.full((requests,), total, dtype=torch.int32)
    attention.plan(tables, torch.full_like(lens, query_len), lens)
    q, cache = (
        inputs.normal(requests * query_len, inputs.HEADS, inputs.RANK + inputs.ROPE),
        inputs.latent_pool(blocks, 1),
    )
    return lambda: attention.run(q, cache)


def _prefill() -> Callable[[], object]:
    lens = torch.tensor([8192], dtype=torch.int32)
    attention = RaggedPrefill(inputs.device())
    attention.plan(
        lens, lens, heads=inputs.HEADS, key_width=inputs.NOPE + inputs.ROPE, value_width=inputs.VALUE,
        sm_scale=inputs.SM_SCALE, causal=True,
    )  # fmt: skip
    q, k = (inputs.normal(8192, inputs.HEADS, inputs.NOPE + inputs.ROPE) for _ in range(2))
    v = inputs.normal(8192, inputs.HEADS, inputs.VALUE)
    return lambda: attention.run(q, k, v)
