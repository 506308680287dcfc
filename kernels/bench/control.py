"""The same kernel as both contenders: how far apart two measurements of one thing come."""

from collections.abc import Iterator

import torch

from kernels.bench import inputs
from kernels.bench.attention import CACHED, HEADS, RANK, ROPE
from kernels.bench.contest import contest
from kernels.bench.dense import LAUNCHES, PROJECTIONS, gemm_work
from kernels.bench.record import Limits, Result, Work
from kernels.bench.table import CONTROL, ITSELF
from kernels.bench.timing import Calls, sets_beyond_l2
from kernels.fp8_gemm_deepgemm import fp8_gemm_deepgemm
from kernels.mla_decode import FlashInferMla


def bench_control(limits: Limits) -> Iterator[Result]:
    """A product of each projection by DeepGEMM, and one request's attention by FlashInfer."""
    for name, ((columns, inner), _) in PROJECTIONS.items():
        weights = [inputs.weight(columns, inner) for _ in range(sets_beyond_l2(columns * inner))]
        x = inputs.activation(128, inner)
        calls: Calls = [lambda w=w, x=x: fp8_gemm_deepgemm(*x, *w) for w in weights]  # type: ignore[misc]
        shape: dict[str, int | str] = {"kernel": f"deepgemm, {name}", "M": 128}
        work = gemm_work(128, columns, inner)
        yield from (
            r for r in contest(CONTROL, shape, work, limits, calls, {ITSELF: calls}, launches=LAUNCHES) if r.ratio
        )
    total = CACHED + 1
    tables = inputs.block_tables(1, total, 128)
    attention = FlashInferMla(inputs.device(), 1, tables.numel())
    one = torch.ones(1, dtype=torch.int32)
    attention.plan(
        tables, one, one * total,
        heads=HEADS, rank=RANK, rope=ROPE, block_tokens=inputs.BLOCK_TOKENS, sm_scale=inputs.SM_SCALE,
    )  # fmt: skip
    q, cache = inputs.normal(1, HEADS, RANK + ROPE), inputs.latent_pool(128)
    calls = [lambda: attention.run(q[..., :RANK], q[..., RANK:], cache)]
    work = Work(total * (RANK + ROPE) * 2, 2.0 * HEADS * total * (2 * RANK + ROPE), fp8=False)
    shape = {"kernel": "flashinfer fa3", "requests": 1}
    yield from (
        r for r in contest(CONTROL, shape, work, limits, calls, {ITSELF: calls}, launches=16, ordered=True) if r.ratio
    )
