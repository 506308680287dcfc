"""MLA decode over block-major pages, MLA prefill, and the products around them."""

import statistics
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.absorb import absorb_query, project_value, rotate_rows
from kernels.bench import inputs
from kernels.bench.contest import ROUNDS, contest
from kernels.bench.record import Limits, Result, Work, result
from kernels.bench.timing import Calls, rest, time_us, times_us
from kernels.mla_decode import AttentionShape, DecodeAttention, FlashInferMla, FlashMla
from kernels.mla_prefill import RaggedPrefill, attend_cudnn
from kernels.quant_fp8 import quantize_per_token

CACHED = 5000
SHORT_ROUNDS = 9  # where hundredths of a second of full work bring the chip to its power limit
HOT_SHAPE, HOT_LAUNCHES = (128, 2), 40  # also measured for two tenths of a second without rest
DECODE_TARGETS_US = {(128, 2): 520.0, (32, 2): 150.0}
DECODE_SHAPES = (
    (128, 2), (128, 1), (64, 1), (32, 2), (32, 1), (16, 1), (8, 1), (4, 2), (4, 1), (2, 1), (1, 2), (1, 1), (128, 4),
)  # fmt: skip
PREFILL_TARGETS_TFLOPS = {4096: 630.0, 8192: 690.0}
HEADS, RANK, ROPE = inputs.HEADS, inputs.RANK, inputs.ROPE


def bench_decode(limits: Limits) -> Iterator[Result]:
    """Both libraries and what `DecodeAttention` chooses and plans."""
    blocks = 128 * -(-(CACHED + 4) // inputs.BLOCK_TOKENS)
    cache = inputs.latent_pool(blocks)
    model = AttentionShape(HEADS, RANK, ROPE, inputs.BLOCK_TOKENS, inputs.SM_SCALE)
    for requests, query_len in DECODE_SHAPES:
        total = CACHED + query_len
        tables = inputs.block_tables(requests, total, blocks)
        lens, queries = (torch.full((requests,), n, dtype=torch.int32) for n in (total, query_len))
        q = inputs.normal(requests, query_len, HEADS, RANK + ROPE)
        flat = q.flatten(0, 1)
        flops = 2.0 * requests * query_len * HEADS * total * (2 * RANK + ROPE)
        work = Work(requests * total * (RANK + ROPE) * 2 + 2 * flat.numel() + 2 * flat.numel(), flops, fp8=False)
        shape = {"requests": requests, "query": query_len, "cached": CACHED}
        chosen = DecodeAttention(inputs.device(), model, requests, query_len, tables.shape[1])
        chosen.plan(tables, queries, lens)
        flash, device_tables, device_lens = FlashMla(), tables.to(q.device), lens.to(q.device)
        planned = FlashInferMla(inputs.device(), requests, tables.numel())
        planned.plan(
            tables, queries, lens,
            heads=HEADS, rank=RANK, rope=ROPE, block_tokens=inputs.BLOCK_TOKENS, sm_scale=inputs.SM_SCALE,
        )  # fmt: skip
        libraries: dict[str, Calls] = {
            "flashmla": [lambda: flash.run(q, cache, device_tables, device_lens, inputs.SM_SCALE)],
            "flashinfer fa3": [lambda: planned.run(flat[..., :RANK], flat[..., RANK:], cache)],
        }
        long = requests > 16
        rest()
        yield from contest(
            "MLA decode", shape, work, limits, [lambda: chosen.run(flat, cache)], libraries,
            target_us=DECODE_TARGETS_US.get((requests, query_len)),
            launches=2 if long else 16, rounds=SHORT_ROUNDS if long else ROUNDS, ordered=True,
        )  # fmt: skip
        if (requests, query_len) == HOT_SHAPE:
            hot = times_us({"": [lambda: chosen.run(flat, cache)]}, launches=HOT_LAUNCHES, ordered=True)[""]
            yield result("MLA decode without rest", "tandem", shape, statistics.median(hot), work, limits)


def bench_prefill(limits: Limits) -> Iterator[Result]:
    for tokens, target in PREFILL_TARGETS_TFLOPS.items():
        q, k = (inputs.normal(tokens, HEADS, inputs.NOPE + ROPE) for _ in range(2))
        v = inputs.normal(tokens, HEADS, inputs.VALUE)
        flops = float(tokens) * tokens * HEADS * (inputs.NOPE + ROPE + inputs.VALUE)
        work = Work(2 * (q.numel() + k.numel() + 2 * v.numel()), flops, fp8=False)
        ragged, lens = RaggedPrefill(inputs.device()), torch.tensor([tokens], dtype=torch.int32)
        ragged.plan(
            lens,
            lens,
            heads=HEADS,
            key_width=q.shape[2],
            value_width=inputs.VALUE,
            sm_scale=inputs.SM_SCALE,
            causal=True,
        )
        rest()
        yield from contest(
            "MHA prefill 192/128", {"tokens": tokens}, work, limits,
            [lambda: ragged.run(q, k, v)],
            {"cudnn": [lambda: attend_cudnn(q, k, v, inputs.SM_SCALE, causal=True)]},
            target_us=round(flops / target / 1e6, 1), launches=1, rounds=SHORT_ROUNDS,
        )  # fmt: skip


def bench_crossover(limits: Limits) -> Iterator[Result]:
    """One request of 1,024 new tokens over cached ones: absorbed on the pages against up-projected multi-head form.

    The multi-head form also pays for gathering and up-projecting the context; both times include only attention here.
    """
    new = 1024
    for cached in (0, 1024, 4096, 16384):
        total = cached + new
        blocks = -(-total // inputs.BLOCK_TOKENS)
        cache = inputs.latent_pool(blocks, layers=1)
        tables, lens = torch.arange(blocks, dtype=torch.int32)[None], torch.tensor([total], dtype=torch.int32)
        queries = torch.tensor([new], dtype=torch.int32)
        absorbed = inputs.normal(new, HEADS, RANK + ROPE)
        pages = FlashInferMla(inputs.device(), 1, blocks)
        pages.plan(
            tables, queries, lens,
            heads=HEADS, rank=RANK, rope=ROPE, block_tokens=inputs.BLOCK_TOKENS, sm_scale=inputs.SM_SCALE,
        )  # fmt: skip
        seen = new * (cached + (new + 1) / 2)
        us = time_us([lambda: pages.run(absorbed[..., :RANK], absorbed[..., RANK:], cache)], launches=2, replays=5)
        shape = {"new": new, "cached": cached}
        work = Work(0, 2.0 * HEADS * seen * (2 * RANK + ROPE), fp8=False)
        yield result("prefill over context", "absorbed fa3", shape, us, work, limits)
        q, k = inputs.normal(new, HEADS, inputs.NOPE + ROPE), inputs.normal(total, HEADS, inputs.NOPE + ROPE)
        v = inputs.normal(total, HEADS, inputs.VALUE)
        ragged = RaggedPrefill(inputs.device())
        ragged.plan(
            queries, lens, heads=HEADS, key_width=q.shape[2], value_width=inputs.VALUE, sm_scale=inputs.SM_SCALE,
            causal=True,
        )  # fmt: skip
        us = time_us([lambda: ragged.run(q, k, v)], launches=2, replays=5)
        work = Work(0, 2.0 * HEADS * seen * (inputs.NOPE + ROPE + inputs.VALUE), fp8=False)
        yield result("prefill over context", "multi-head fa3", shape, us, work, limits)


@triton.jit(do_not_specialize=["T"])
def _rotation(
    q_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, T, stride_q, stride_out,
    NOPE: tl.constexpr, PE: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What a library's product of the rest leaves to do."""
    token, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    q, out = q_ptr + head * (NOPE + PE) + NOPE, out_ptr + head * (R + PE) + R
    rotate_rows(q, out, cos_ptr, sin_ptr, positions_ptr, token, token < T, stride_q, stride_out, PE)


def bench_absorb(limits: Limits) -> Iterator[Result]:
    turn = inputs.angles(CACHED + 1)
    scale = torch.rand((HEADS, RANK // 128), device=inputs.device()) + 0.5
    k_bs = [inputs.weight(HEADS, RANK, inputs.NOPE)[0] for _ in range(24)]
    v_bs = [inputs.weight(HEADS, inputs.VALUE, RANK)[0] for _ in range(24)]
    for tokens in (1, 32, 128, 256):
        q, attended = inputs.normal(tokens, HEADS, inputs.NOPE + ROPE), inputs.normal(tokens, HEADS, RANK)
        positions = torch.full((tokens,), CACHED, device=inputs.device())
        shape = {"tokens": tokens}
        out_bytes = tokens * HEADS * (RANK + ROPE) * 2
        flops = 2.0 * tokens * HEADS * RANK * 128
        wide = [inputs.normal(HEADS, inputs.NOPE, RANK) for _ in range(8)]
        heads_first = q[..., : inputs.NOPE].transpose(0, 1)
        absorbed = inputs.normal(tokens, HEADS, RANK + ROPE)
        narrow = [inputs.normal(HEADS, RANK, inputs.VALUE) for _ in range(8)]
        values_first = attended.transpose(0, 1)

        def rotate() -> None:
            _rotation[(triton.cdiv(tokens, 16), HEADS)](
                q, absorbed, turn.cos, turn.sin, positions, tokens, q.stride(0), absorbed.stride(0),
                NOPE=inputs.NOPE, PE=ROPE, R=RANK, ROWS=16,
            )  # fmt: skip

        def absorb(w: torch.Tensor) -> None:
            torch.bmm(heads_first, w)
            rotate()

        def project(w: torch.Tensor) -> None:
            quantize_per_token(torch.bmm(values_first, w).view(tokens, -1))

        product_us = time_us([lambda w=w: torch.bmm(heads_first, w) for w in wide])  # type: ignore[misc]
        product = Work(2 * k_bs[0].numel() + out_bytes)
        yield result("query absorb product alone", "cublas bf16", shape, product_us, product, limits)
        work = Work(k_bs[0].numel() + 2 * q.numel() + out_bytes, flops)

        def carry(w: torch.Tensor, early: bool) -> None:
            absorb_query(q, w, scale, turn.cos, turn.sin, positions, early=early)

        yield from contest(
            "query absorb + rotation", shape, work, limits,
            [lambda w=w: carry(w, True) for w in k_bs],  # type: ignore[misc]
            {"cublas bf16 + rotation": [lambda w=w: absorb(w) for w in wide]},  # type: ignore[misc]
            launches=len(k_bs),
        )  # fmt: skip
        settled = time_us([lambda w=w: carry(w, False) for w in k_bs])  # type: ignore[misc]
        yield result("query absorb + rotation before FlashMLA", "tandem", shape, settled, work, limits)
        yield from contest(
            "value projection + quantisation", shape,
            Work(v_bs[0].numel() + 2 * attended.numel() + tokens * HEADS * 128, flops), limits,
            [lambda w=w: project_value(attended, w, scale) for w in v_bs],  # type: ignore[misc]
            {"cublas bf16 + quantisation": [lambda w=w: project(w) for w in narrow]},  # type: ignore[misc]
            launches=len(v_bs),
        )  # fmt: skip
