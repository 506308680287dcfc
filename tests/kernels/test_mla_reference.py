"""The attention references against one plain softmax per query, over scattered blocks, odd lengths and tiles."""

import pytest
import torch

from kernels.mla_decode_ref import mla_decode
from kernels.mla_prefill_ref import merge_states, mla_prefill

BLOCK_TOKENS, RANK, ROPE, HEADS = 8, 12, 4, 3
SCALE = 0.3


def plain(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One query [heads, D] over keys [n, heads, D]: output [heads, V], log2 of the sum of exp [heads]."""
    scores = torch.einsum("hd,nhd->hn", q.double(), keys.double()) * SCALE
    return torch.einsum("hn,nhv->hv", scores.softmax(-1), values.double()), scores.logsumexp(-1) / torch.log(
        torch.tensor(2.0, dtype=torch.float64)
    )


@pytest.mark.parametrize("tables", ["neighbours", "scattered", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_over_blocks(tables: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query_lens, total_lens = [1, 3, 0, 2, 1], [1, 43, 9, 16, 40]
    blocks = {
        "neighbours": list(range(30)),
        "scattered": torch.randperm(30, generator=generator).tolist(),
        "mixed": [
            4,
            5,
            6,
            20,
            21,
            1,
            9,
            10,
            11,
            12,
            2,
            3,
            13,
            14,
            15,
            16,
            29,
            28,
            27,
            7,
            8,
            17,
            18,
            19,
            0,
            *range(22, 27),
        ],
    }[tables]
    table = torch.tensor([blocks[i * 6 : i * 6 + 6] for i in range(5)], dtype=torch.int32)
    # One layer of several: the view's blocks do not touch.
    pool = torch.randn(30, 4, BLOCK_TOKENS, RANK + ROPE, generator=generator).to(dtype)
    cache = pool[:, 2]
    q = torch.randn(sum(query_lens), HEADS, RANK + ROPE, generator=generator).to(dtype)
    out = mla_decode(
        q[..., :RANK],
        q[..., RANK:],
        cache,
        table,
        torch.tensor(query_lens, dtype=torch.int32),
        torch.tensor(total_lens, dtype=torch.int32),
        SCALE,
    )
    assert out.dtype == dtype
    row = 0
    for request, (query_len, total_len) in enumerate(zip(query_lens, total_lens, strict=True)):
        latent = torch.cat([cache[b] for b in table[request].tolist()])[:, None].expand(-1, HEADS, -1)
        for i in range(query_len):
            seen = latent[: total_len - query_len + 1 + i]
            expected, _ = plain(q[row], seen, seen[..., :RANK])
            torch.testing.assert_close(
                out[row].double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2
            )
            row += 1


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("query_lens", "key_lens"), [([5, 0, 1], [9, 4, 1]), ([300], [300]), ([129, 128], [400, 128]), ([4, 2], [2, 0])]
)
def test_prefill_over_tiles(query_lens: list[int], key_lens: list[int], causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(sum(query_lens), HEADS, 16, generator=generator)
    k, v = (torch.randn(sum(key_lens), HEADS, width, generator=generator) for width in (16, 10))
    lens = (torch.tensor(query_lens, dtype=torch.int32), torch.tensor(key_lens, dtype=torch.int32))
    out, lse = mla_prefill(q, k, v, *lens, SCALE, causal=causal)
    row = first_key = 0
    for query_len, key_len in zip(query_lens, key_lens, strict=True):
        for i in range(query_len):
            seen = key_len - query_len + 1 + i if causal else key_len
            keys = slice(first_key, first_key + max(seen, 0))
            if seen <= 0:
                assert not out[row].any()
                assert bool((lse[row] == float("-inf")).all())
            else:
                expected, expected_lse = plain(q[row], k[keys], v[keys])
                torch.testing.assert_close(out[row].double(), expected, rtol=0, atol=1e-5)
                torch.testing.assert_close(lse[row].double(), expected_lse, rtol=0, atol=1e-5)
            row += 1
        first_key += key_len


def test_parts_of_a_context_join() -> None:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(7, HEADS, 16, generator=generator)
    k, v = (torch.randn(50, HEADS, width, generator=generator) for width in (16, 10))

    def part(keys: slice, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        size = len(range(*keys.indices(50)))
        return mla_prefill(q, k[keys], v[keys], torch.tensor([7]), torch.tensor([size]), SCALE, causal=causal)

    joined = merge_states(*part(slice(0, 30), False), *part(slice(30, 50), True))
    for ours, whole in zip(joined, part(slice(0, 50), True), strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-5)
