"""Published and measured kernel times, and which of them the fit may see.

The split is fixed here, before any fit: within each library, rows are listed in the order of their table, `fit` marks
at most half of them, and the others are only ever compared with.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadgen.planner.attention_operations import Queries, decode_attention, prefill_attention
from loadgen.planner.figure import OUR_H200, Kind
from loadgen.planner.linear import linear_bytes
from loadgen.planner.model_shapes import ModelShape, model_shape
from loadgen.planner.operations import KernelClass, Operation, elementwise, gemm, grouped_gemm

V3 = model_shape("deepseek-v3")


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One row of one table.

    Attributes:
        library: whose kernel, in which version; the name of the curve it belongs to.
        operation: the work.
        us: published or measured time.
        hardware: entry of `HARDWARE`.
        fit: seen by the fit, or only compared with.
        outlier: why the row is in neither half, if it is.
    """

    library: str
    operation: Operation
    us: float
    hardware: str
    kind: Kind
    source: str
    fit: bool
    outlier: str = ""


# DeepGEMM's first README on H800: (N, K, TFLOP/s at M = 64, at 128, at 4096). Odd columns of each row are fitted.
_DEEPGEMM_DENSE = (
    (2112, 7168, 206, 352, 1058),
    (24576, 1536, 289, 535, 990),
    (32768, 512, 219, 358, 590),
    (7168, 16384, 336, 645, 1358),
    (4096, 7168, 287, 533, 1304),
    (7168, 2048, 295, 510, 1025),
)
# The same README and one pull request: (hardware, groups, rows, N, K, TFLOP/s or us, is time, fit).
_DEEPGEMM_GROUPED = (
    ("h800", 1, 1024, 4096, 7168, 1233, False, True),
    ("h800", 1, 1024, 7168, 2048, 925, False, False),
    ("h800", 2, 512, 4096, 7168, 1040, False, False),
    ("h800", 2, 512, 7168, 2048, 916, False, True),
    ("h800", 4, 256, 4096, 7168, 932, False, True),
    ("h800", 4, 256, 7168, 2048, 815, False, False),
    ("h800", 4, 8192, 4096, 7168, 1297, False, False),
    ("h800", 4, 8192, 7168, 2048, 1099, False, True),
    ("h800", 8, 4096, 4096, 7168, 1288, False, False),
    ("h800", 8, 4096, 7168, 2048, 1093, False, False),
    ("h100", 16, 32, 4096, 7168, 168, True, True),
    ("h100", 16, 32, 7168, 2048, 94, True, False),
    ("h100", 16, 96, 4096, 7168, 176, True, False),
    ("h100", 16, 96, 7168, 2048, 100, True, False),
    ("h100", 16, 160, 4096, 7168, 229, True, False),
    ("h100", 16, 160, 7168, 2048, 116, True, True),
)
# DeepGEMM of 2026 on our H200s: (N, K, M, us, fit, outlier).
_OUR_DENSE = (
    (2112, 7168, 16, 17.4, True, ""),
    (2112, 7168, 64, 17.0, False, ""),
    (2112, 7168, 128, 18.0, False, ""),
    (2112, 7168, 256, 19.6, False, ""),
    (24576, 1536, 128, 45.9, False, "slower than the same product with twice the rows; a bad tile choice"),
    (24576, 1536, 256, 28.4, True, ""),
    (7168, 16384, 128, 50.7, True, ""),
    (7168, 16384, 256, 63.3, False, ""),
)
# The kernels that vLLM 0.26.0 and FlashInfer pick for one token on our H200: (N, K, us, fit, outlier).
_OUR_SMALL = (
    (2112, 7168, 10.8, True, ""),
    (7168, 16384, 33.5, False, ""),
    (7168, 2048, 23.0, False, "another kernel, seven times its floor"),
)
# (groups, rows, N, K, us, fit)
_OUR_GROUPED = (
    (2, 1024, 4096, 7168, 104.6, False),
    (2, 1024, 7168, 2048, 57.1, False),
    (32, 64, 4096, 7168, 249.0, False),
)
# FlashInfer fa3, absorbed decode at 5,000 cached tokens, query 2, 128 heads: (requests, us, fit, what)
_OUR_MLA = (
    (128, 657.0, True, "separate contiguous pages"),
    (128, 650.0, False, "contiguous pages, second run"),
    (128, 582.0, False, "strided view of a block-major pool"),
    (32, 206.0, True, "separate contiguous pages"),
)
# Prefill attention 192/128: (hardware, heads, tokens, TFLOP/s, fit, kind, source)
_PREFILL = (
    ("h100", 16, 2048, 422, True, Kind.PUBLISHED, "FA4-SM90 (pith-train PR 3)"),
    ("h100", 16, 4096, 572, False, Kind.PUBLISHED, "FA4-SM90 (pith-train PR 3)"),
    ("h100", 16, 8192, 611, True, Kind.PUBLISHED, "FA4-SM90 (pith-train PR 3)"),
    ("h100", 16, 16384, 634, False, Kind.PUBLISHED, "FA4-SM90 (pith-train PR 3)"),
    ("h200", 128, 4096, 589, True, Kind.MEASURED, OUR_H200),
    ("h200", 128, 8192, 646, False, Kind.MEASURED, OUR_H200),
)
# FlashMLA: (hardware, heads, query, requests, cached, us, fit, source)
_FLASHMLA = (
    ("h100", 16, 1, 128, 4096, 215.0, True, "first FlashMLA on H100 (achatbot PR 123)"),
    ("h100", 64, 1, 128, 4096, 223.0, False, "first FlashMLA on H100 (achatbot PR 123)"),
    ("h800", 128, 2, 128, 5000, 540.0, True, "660 TFLOP/s compute-bound (FlashMLA README)"),
)


def kernel_points() -> list[KernelPoint]:
    """Every row, library by library."""
    return [*_dense(), *_grouped(), *_attention(), *_activation()]


def _dense() -> Iterator[KernelPoint]:
    source = "DeepGEMM first README, nvcc 12.8"
    for row, (n, k, *rates) in enumerate(_DEEPGEMM_DENSE):
        for column, (m, rate) in enumerate(zip((64, 128, 4096), rates, strict=True)):
            operation = _linear(m, n, k)
            us = operation.flops / rate / 1e6
            fit = (row + column) % 2 == 0
            yield KernelPoint("deepgemm-2025", operation, us, "h800", Kind.PUBLISHED, source, fit)
    for n, k, m, us, fit, outlier in _OUR_DENSE:
        yield KernelPoint("deepgemm-2026", _linear(m, n, k), us, "h200", Kind.MEASURED, OUR_H200, fit, outlier)
    for n, k, us, fit, outlier in _OUR_SMALL:
        yield KernelPoint("small-batch-gemm", _linear(1, n, k), us, "h200", Kind.MEASURED, OUR_H200, fit, outlier)


def _grouped() -> Iterator[KernelPoint]:
    for gpu, groups, rows, n, k, value, is_time, fit in _DEEPGEMM_GROUPED:
        operation = _experts(groups, rows, n, k)
        us = float(value) if is_time else operation.flops / value / 1e6
        source = "DeepGEMM PR 192" if is_time else "DeepGEMM first README"
        yield KernelPoint("deepgemm-grouped", operation, us, gpu, Kind.PUBLISHED, source, fit)
    for groups, rows, n, k, us, fit in _OUR_GROUPED:
        operation = _experts(groups, rows, n, k)
        yield KernelPoint("deepgemm-grouped", operation, us, "h200", Kind.MEASURED, OUR_H200, fit)


def _attention() -> Iterator[KernelPoint]:
    for requests, us, fit, what in _OUR_MLA:
        operation = mla_decode(128, requests, 2, 5000)
        yield KernelPoint("flashinfer-fa3", operation, us, "h200", Kind.MEASURED, f"{OUR_H200}, {what}", fit)
    for gpu, heads, query, requests, cached, us, fit, source in _FLASHMLA:
        operation = mla_decode(heads, requests, query, cached)
        yield KernelPoint("flashmla", operation, us, gpu, Kind.PUBLISHED, source, fit)
    for gpu, heads, tokens, rate, fit, kind, source in _PREFILL:
        operation = mha_prefill(heads, 1, tokens)
        us = operation.flops / rate / 1e6
        yield KernelPoint("fa3-prefill", operation, us, gpu, kind, source, fit)


def _activation() -> Iterator[KernelPoint]:
    # E = 256, T = 64, H = 7168, SiLU x mul and quantisation by counts: bf16 [E, T, 2H] in, FP8 [E, T, H] out.
    operation = elementwise("silu, quantise", 4, 256 * 64 * 7168 * 5)
    yield KernelPoint(
        "elementwise", operation, operation.bytes / 2.796e6, "h100", Kind.PUBLISHED, "vLLM PR 23562, 2796 GB/s", False
    )


def _linear(m: int, n: int, k: int) -> Operation:
    return gemm(f"{n}x{k}, M {m}", 0, m, n, k, linear_bytes(V3, n, k))


def _experts(groups: int, rows: int, n: int, k: int) -> Operation:
    name = f"{groups} x {rows}, {n}x{k}"
    return grouped_gemm(name, 0, groups, rows, n, k, linear_bytes(V3, n, k), routed=False)


def mla_decode(heads: int, requests: int, query: int, cached: int) -> Operation:
    """The attention kernel alone for `heads` heads of a V3 layer."""
    tp = V3.heads // heads
    return _named(f"b{requests} q{query} h{heads} kv{cached}", decode_attention, Queries(requests, query, cached), tp)


def mha_prefill(heads: int, prompts: int, tokens: int, cached: int = 0) -> Operation:
    """The attention kernel alone over whole prompts."""
    tp = V3.heads // heads
    return _named(f"{prompts} x {tokens} tokens, h{heads}", prefill_attention, Queries(prompts, tokens, cached), tp)


def _named(
    name: str, build: Callable[[ModelShape, Queries, int], list[Operation]], queries: Queries, tp: int
) -> Operation:
    wanted = (KernelClass.MLA_DECODE, KernelClass.PREFILL_ATTENTION)
    found = next(o for o in build(V3, queries, tp) if o.kernel in wanted)
    return Operation(
        name, 0, found.kernel, found.precision, found.flops, found.bytes, found.padded_flops, length=found.length
    )
