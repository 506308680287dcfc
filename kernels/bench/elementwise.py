"""What only moves memory: norms, quantisation, latent, sorting, combine, sampling, block tags."""

from collections.abc import Iterator

import torch

from kernels.accept import accept
from kernels.bench import inputs
from kernels.bench.record import Limits, Result, Work, result
from kernels.bench.timing import time_us
from kernels.block_tag import block_hashes
from kernels.latent import split_qkv_a
from kernels.permute import sort_pairs, unpermute
from kernels.quant_fp8 import add_rms_norm_quant, quantize_per_token, rms_norm_quant
from kernels.sample import sample

VOCAB = 129280
HIDDEN = inputs.HIDDEN


def bench_rows(limits: Limits) -> Iterator[Result]:
    norm, turn = inputs.normal(HIDDEN), inputs.angles(8192)
    q_norm, kv_norm = inputs.normal(inputs.Q_LORA), inputs.normal(inputs.RANK)
    cache = inputs.latent_pool(64)
    for tokens in (1, 32, 128, 256, 4096):
        shape = {"tokens": tokens}
        x = inputs.normal(tokens, HIDDEN)
        cell = tokens * HIDDEN
        yield result("quantise", "tandem", shape, time_us([lambda: quantize_per_token(x)]), Work(3 * cell), limits)
        yield result(
            "norm + quantise", "tandem", shape, time_us([lambda: rms_norm_quant(x, norm, 1e-6)]), Work(3 * cell), limits
        )
        us = time_us([lambda: add_rms_norm_quant(x, x, norm, 1e-6)])
        yield result("add + norm + quantise", "tandem", shape, us, Work(9 * cell), limits)
        qkv = inputs.normal(tokens, inputs.Q_LORA + inputs.RANK + inputs.ROPE)
        positions = torch.arange(tokens, device=inputs.device())
        us = time_us([lambda: split_qkv_a(qkv, q_norm, kv_norm, 1e-6, turn.cos, turn.sin, positions, cache, positions)])
        yield result(
            "finish qkv_a, append latent", "tandem", shape, us, Work(tokens * (2 * 2112 + 1536 + 1152)), limits
        )
        ids = torch.rand((tokens, 32), device=inputs.device()).topk(8, dim=1).indices.to(torch.int32)
        us = time_us([lambda: sort_pairs(ids, 32, 4)])
        yield result("sort pairs by expert", "tandem", shape, us, Work(tokens * 8 * 12), limits)
        rows, sources, _ = sort_pairs(ids, 32, 4)
        y, weights = inputs.normal(sources.shape[0], HIDDEN), torch.rand((tokens, 8), device=inputs.device())
        us = time_us([lambda: unpermute(y, rows, weights, x)])
        yield result("weighted combine + residual", "tandem", shape, us, Work(2 * cell * 10), limits)


def bench_tokens(limits: Limits) -> Iterator[Result]:
    for requests in (1, 32, 128):
        logits = torch.randn((requests, VOCAB), device=inputs.device()) * 3

        def row(value, dtype=torch.float32, n=requests):
            return torch.full((n,), value, dtype=dtype, device=inputs.device())

        seeds, positions, all_k = row(7, torch.int64), row(5000, torch.int64), row(0, torch.int64)
        plain = time_us([lambda: sample(logits, row(0.8), all_k, row(1.0), row(0.0), seeds, positions)], launches=4)
        top = row(50, torch.int64)
        full = time_us([lambda: sample(logits, row(0.8), top, row(0.95), row(0.05), seeds, positions)], launches=4)
        work = Work(4.0 * requests * VOCAB)
        shape = {"requests": requests, "vocab": VOCAB}
        yield result("sample, temperature", "tandem", shape, plain, work, limits)
        yield result("sample, top-k, top-p, min-p", "tandem", shape, full, work, limits)
    drafts, draws = torch.zeros((128, 1), dtype=torch.int64), torch.zeros((128, 2), dtype=torch.int64)
    a, b = drafts.to(inputs.device()), draws.to(inputs.device())
    yield result("accept drafts", "tandem", {"requests": 128}, time_us([lambda: accept(a, b)]), Work(128 * 28), limits)
    words = inputs.LAYERS * inputs.BLOCK_TOKENS * (inputs.RANK + inputs.ROPE) // 2
    pool = torch.randint(-(2**31), 2**31 - 1, (160, words), dtype=torch.int32, device=inputs.device())
    blocks = torch.arange(79, device=inputs.device())
    us = time_us([lambda: block_hashes(pool, blocks), lambda: block_hashes(pool, blocks + 80)], launches=4)
    yield result("hash the blocks of 5,000 tokens", "tandem", {"blocks": 79}, us, Work(79 * words * 4), limits)
