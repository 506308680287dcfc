"""FP8 projections of a V3 layer, and the input projection with its norm and quantisation."""

from collections.abc import Iterator

from kernels.bench import inputs
from kernels.bench.contest import contest
from kernels.bench.record import Limits, Result, Work, result
from kernels.bench.timing import sets_beyond_l2, time_us
from kernels.fp8_gemm import fp8_gemm, fp8_gemm_partial
from kernels.fp8_gemm_deepgemm import fp8_gemm_deepgemm
from kernels.fp8_gemm_splitk import fp8_gemm_splitk
from kernels.quant_fp8 import rms_norm_quant

# name: (N, K), {rows: target us}
PROJECTIONS: dict[str, tuple[tuple[int, int], dict[int, float | None]]] = {
    "qkv_a": ((2112, 7168), {1: None, 16: None, 64: None, 128: None, 256: None}),
    "q_b": ((24576, 1536), {1: None, 32: None, 64: None, 128: 20.0, 256: 20.0}),
    "o_proj": ((7168, 16384), {1: 40.0, 32: 40.0, 64: 40.0, 128: 40.0, 256: None}),
}
NORMED_TARGET_US = 8.0
NORMED_ROWS = (1, 16, 64)
LAUNCHES = 24  # a graph, so that the clock of events does not matter


def gemm_work(rows: int, columns: int, inner: int) -> Work:
    return Work(columns * inner + rows * inner + 2 * rows * columns, 2.0 * rows * columns * inner)


def bench_dense(limits: Limits) -> Iterator[Result]:
    for name, ((columns, inner), targets) in PROJECTIONS.items():
        weights = [inputs.weight(columns, inner) for _ in range(sets_beyond_l2(columns * inner))]
        for rows, target in targets.items():
            x = inputs.activation(rows, inner)
            work, shape = gemm_work(rows, columns, inner), {"M": rows, "N": columns, "K": inner}
            yield from contest(
                name, shape, work, limits,
                [lambda w=w: fp8_gemm(*x, *w) for w in weights],  # type: ignore[misc]
                {"deepgemm": [lambda w=w: fp8_gemm_deepgemm(*x, *w) for w in weights]},  # type: ignore[misc]
                target_us=target, launches=LAUNCHES,
            )  # fmt: skip
            if rows <= 128:
                alone = time_us([lambda w=w: fp8_gemm_splitk(*x, *w) for w in weights])  # type: ignore[misc]
                yield result(name, "split-K", shape, alone, work, limits)
                sums = time_us([lambda w=w: fp8_gemm_partial(*x, *w) for w in weights])  # type: ignore[misc]
                yield result(name, "partial sums", shape, sums, work, limits)


def bench_normed(limits: Limits) -> Iterator[Result]:
    """RMSNorm + quantisation + qkv_a whose parts the next kernel adds, and the same through DeepGEMM."""
    (columns, inner), _ = PROJECTIONS["qkv_a"]
    weights = [inputs.weight(columns, inner) for _ in range(sets_beyond_l2(columns * inner))]
    norm = inputs.normal(inner)
    for rows in NORMED_ROWS:
        x = inputs.normal(rows, inner)
        work, shape = gemm_work(rows, columns, inner), {"M": rows, "N": columns, "K": inner}

        def chain(gemm, w):
            return gemm(*rms_norm_quant(x, norm, 1e-6), *w)

        yield from contest(
            "norm + qkv_a", shape, work, limits,
            [lambda w=w: chain(fp8_gemm_partial, w) for w in weights],  # type: ignore[misc]
            {"norm + deepgemm": [lambda w=w: chain(fp8_gemm_deepgemm, w) for w in weights]},  # type: ignore[misc]
            target_us=NORMED_TARGET_US, launches=LAUNCHES,
        )  # fmt: skip
