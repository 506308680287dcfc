"""Grouped products, SwiGLU with quantisation, and the router."""

from collections.abc import Iterator

import torch

from kernels.bench import inputs
from kernels.bench.contest import contest
from kernels.bench.record import Limits, Result, Work, result
from kernels.bench.timing import rest, sets_beyond_l2, time_us
from kernels.fp8_gemm_deepgemm import CONTIGUOUS_ALIGN, grouped_gemm_contiguous, grouped_gemm_masked
from kernels.gate import project_gate
from kernels.grouped_gemm import ROW_ALIGN, grouped_gemm
from kernels.grouped_gemm_stream import grouped_gate_up
from kernels.permute import sort_pairs
from kernels.silu_mul_quant import silu_mul_quant
from kernels.tiles import padded_scale_buffer

HIDDEN, INNER = inputs.HIDDEN, inputs.INTERMEDIATE
EP8_TARGET_US = 345.0
EP128_TARGET_US = 150.0
SILU_TARGET_BYTES_PER_S = 3.6e12
GATE_TARGET_US = 15.0
TOP_K = 8


def products_work(experts: int, rows: int, *, both: bool = True) -> Work:
    """Gate-up and down (or gate-up alone) over `experts` with `rows` each."""
    gate_up = 2 * INNER * HIDDEN
    down = HIDDEN * INNER if both else 0
    activations = experts * rows * (HIDDEN + (4 * INNER + INNER + 2 * HIDDEN if both else 4 * INNER))
    return Work(experts * (gate_up + down) + activations, 2.0 * experts * rows * (gate_up + down))


def padded(experts: int, rows: int, k: int) -> inputs.Quantised:
    """[experts, rows, k] and its scales in the padded form."""
    x = torch.randn((experts, rows, k), device=inputs.device()).to(inputs.FP8)
    scale = padded_scale_buffer(experts, rows, k // 128, inputs.device())
    return x, scale.copy_(torch.rand(scale.shape, device=inputs.device()) + 0.5)


def bench_ep8(limits: Limits) -> Iterator[Result]:
    """32 experts: the slice of an EP8 rank, rows in the padded form that the library takes as well."""
    experts = 32
    gate_up, down = inputs.weight(experts, 2 * INNER, HIDDEN), inputs.weight(experts, HIDDEN, INNER)
    for rows in (4, 8, 16, 32, 64, 128):
        counts = torch.full((experts,), rows, dtype=torch.int32, device=inputs.device())
        x, inner = padded(experts, max(64, rows), HIDDEN), padded(experts, max(64, rows), INNER)
        shape = {"experts": experts, "rows": rows, "counts": "equal"}
        work, first = products_work(experts, rows), products_work(experts, rows, both=False)

        def ours_both():
            grouped_gemm(*x, *gate_up, counts, expected_rows=rows)
            grouped_gemm(*inner, *down, counts, expected_rows=rows)

        def library_both():
            grouped_gemm_masked(*x, *gate_up, counts, rows)
            grouped_gemm_masked(*inner, *down, counts, rows)

        yield from contest(
            "grouped gate-up", shape, first, limits,
            [lambda: grouped_gemm(*x, *gate_up, counts, expected_rows=rows)],
            {"deepgemm masked": [lambda: grouped_gemm_masked(*x, *gate_up, counts, rows)]},
            launches=4,
        )  # fmt: skip
        fused = time_us([lambda: grouped_gate_up(*x, *gate_up, counts, expected_rows=rows)], launches=4)
        yield result("grouped gate-up + SwiGLU + quantisation", "ours", shape, fused, first, limits)
        yield from contest(
            "grouped GEMMs", shape, work, limits, [ours_both], {"deepgemm masked": [library_both]},
            target_us=EP8_TARGET_US if rows == 64 else None, launches=4,
        )  # fmt: skip
    skew = torch.arange(experts, device=inputs.device()).float().add(1).pow(-1.0)
    zipf = (skew / skew.sum() * experts * 64).round().to(torch.int32)[torch.randperm(experts, device=inputs.device())]
    most = int(zipf.max())
    x = padded(experts, most, HIDDEN)
    shape = {"experts": experts, "rows": 64, "counts": "zipf"}
    work = products_work(experts, 64, both=False)
    yield from contest(
        "grouped gate-up", shape, work, limits,
        [lambda: grouped_gemm(*x, *gate_up, zipf, expected_rows=most, mean_rows=64)],
        {"deepgemm masked": [lambda: grouped_gemm_masked(*x, *gate_up, zipf, 64)]},
        launches=4,
    )  # fmt: skip
    yield from bench_scattered(limits, gate_up)


def bench_scattered(limits: Limits, gate_up: inputs.Quantised) -> Iterator[Result]:
    """The gate-up product behind a random routing: rows as tokens lie, experts unequally busy."""
    experts = gate_up[0].shape[0]
    for tokens in (1, 8, 32, 64, 128, 256):
        ids = torch.rand((tokens, experts), device=inputs.device()).topk(TOP_K, dim=1).indices.to(torch.int32)
        _, sources, counts = sort_pairs(ids, experts, ROW_ALIGN)
        x = inputs.activation(tokens, HIDDEN)
        busiest = 2 * -(-ids.numel() // experts)
        busy = int((counts > 0).sum())
        work = Work(busy * 2 * INNER * HIDDEN, 2.0 * ids.numel() * 2 * INNER * HIDDEN)
        us = time_us([lambda: grouped_gemm(*x, *gate_up, counts, sources, expected_rows=busiest)], launches=4)
        yield result("grouped gate-up of scattered rows", "tandem", {"experts": experts, "tokens": tokens}, us, work,
                     limits)  # fmt: skip


def bench_ep128(limits: Limits) -> Iterator[Result]:
    """2 experts with 1,024 rows each: an EP128 rank; and 256 and 512 rows on the way there."""
    experts = 2
    gate_up, down = inputs.weight(experts, 2 * INNER, HIDDEN), inputs.weight(experts, HIDDEN, INNER)
    for rows in (256, 512, 1024):
        x, inner = inputs.activation(experts * rows, HIDDEN), inputs.activation(experts * rows, INNER)
        owners = torch.arange(experts, dtype=torch.int32, device=inputs.device()).repeat_interleave(rows)

        counts = torch.full((experts,), rows, dtype=torch.int32, device=inputs.device())

        def product(x, w):
            return grouped_gemm(x[0], x[1], w[0], w[1], counts, align=CONTIGUOUS_ALIGN, owners=owners)

        def chain():
            q, scale = silu_mul_quant(product(x, gate_up)[None])
            return product((q[0], scale[0]), down)

        shape = {"experts": experts, "rows": rows, "counts": "equal"}
        work = products_work(experts, rows)
        first = products_work(experts, rows, both=False)
        rest()
        a = time_us([lambda: grouped_gemm_contiguous(*x, *gate_up, owners)])
        rest()
        b = time_us([lambda: grouped_gemm_contiguous(*inner, *down, owners)])
        yield result("grouped gate-up", "deepgemm contiguous", shape, a, first, limits)
        yield result("grouped GEMMs alone", "deepgemm contiguous", shape, a + b, work, limits)
        rest()
        yield result(
            "grouped GEMMs + SwiGLU + quantisation", "tandem", shape, time_us([chain]), work, limits,
            target_us=EP128_TARGET_US if rows == 1024 else None,
        )  # fmt: skip


def bench_silu(limits: Limits) -> Iterator[Result]:
    for experts, rows, live in ((32, 128, 64), (32, 256, 256), (2, 1024, 1024), (8, 4096, 4096), (32, 4096, 1500)):
        each = 4 * INNER * experts * rows
        xs = [inputs.normal(experts, rows, 2 * INNER) for _ in range(sets_beyond_l2(each))]
        counts = torch.full((experts,), live, dtype=torch.int32, device=inputs.device())
        work = Work(experts * live * (4 * INNER + INNER + INNER // 32))
        us = time_us([lambda x=x: silu_mul_quant(x, counts) for x in xs])  # type: ignore[misc]
        large = experts * live > 16384
        yield result(
            "SwiGLU + quantisation by counts", "tandem", {"experts": experts, "max_rows": rows, "rows": live},
            us, work, limits, target_us=round(work.bytes / SILU_TARGET_BYTES_PER_S * 1e6, 1) if large else None,
        )  # fmt: skip


def bench_gate(limits: Limits) -> Iterator[Result]:
    experts = 256
    routers = [inputs.normal(experts, HIDDEN) for _ in range(sets_beyond_l2(2 * experts * HIDDEN))]
    bias = torch.randn(experts, device=inputs.device())
    for tokens in (1, 32, 128, 256):
        x = inputs.normal(tokens, HIDDEN)

        def choose(w):
            return project_gate(
                x, w, bias, scoring="sigmoid", n_group=8, topk_group=4, top_k=8, norm_topk_prob=True,
                routed_scaling_factor=2.5,
            )  # fmt: skip

        work = Work(2 * (experts + tokens) * HIDDEN, 2.0 * experts * tokens * HIDDEN, fp8=False)
        product = time_us([lambda w=w: x @ w.T for w in routers])  # type: ignore[misc]
        yield result("router product alone", "cublas", {"tokens": tokens}, product, work, limits)
        yield result(
            "router: product, top-k, counts", "tandem", {"tokens": tokens},
            time_us([lambda w=w: choose(w) for w in routers]), work, limits,  # type: ignore[misc]
            target_us=GATE_TARGET_US if tokens == 256 else None,
        )  # fmt: skip
