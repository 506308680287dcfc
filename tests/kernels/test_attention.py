"""What surrounds attention, and the attention references against plain softmax."""

import pytest
import torch

from kernels import (
    absorb,
    absorb_ref,
    latent,
    latent_ref,
    mla_prefill,
    mla_prefill_ref,
    prefill_heads,
    prefill_heads_ref,
)
from kernels.errors import KernelArgumentError
from kernels.mla_decode_ref import mla_decode
from tests.kernels.closeness import assert_close, assert_quantised, poisoned, relative_error

HEADS, RANK, NOPE, ROPE = 3, 256, 128, 16


def angles(device):
    turn = torch.rand(50, ROPE // 2, device=device) * 6
    return turn.cos(), turn.sin()


@pytest.mark.parametrize("tokens", [1, 33, 70, 130])
def test_absorb_and_value(tokens, device, on_gpu):
    kind = torch.bfloat16 if on_gpu else torch.float32
    cos, sin = angles(device)
    positions = torch.randint(0, 50, (tokens,), device=device)
    k_b = torch.randn(HEADS, RANK, NOPE, device=device).to(torch.float8_e4m3fn)
    v_b = torch.randn(HEADS, 128, RANK, device=device).to(torch.float8_e4m3fn)
    scale = torch.rand(HEADS, RANK // 128, device=device) + 0.5
    q = torch.randn(tokens, HEADS, NOPE + ROPE, device=device).to(kind)
    out = absorb.absorb_query(q, k_b, scale, cos, sin, positions)
    reference = absorb_ref.absorb_query(q, k_b, scale, cos, sin, positions)
    assert relative_error(out, reference) <= (5e-3 if on_gpu else 0.1)
    assert_close(out[..., RANK:], reference[..., RANK:])
    attended = torch.randn(tokens, HEADS, RANK, device=device).to(kind)
    assert_quantised(
        absorb.project_value(attended, v_b, scale), absorb_ref.project_value(attended, v_b, scale), exact=False
    )


@pytest.mark.parametrize("splits", [1, 3])
def test_split_qkv_a_writes_only_its_slots(splits, device):
    cos, sin = angles(device)
    tokens, q_lora = 5, 192
    positions = torch.randint(0, 50, (tokens,), device=device)
    width = q_lora + RANK + ROPE
    qkv = torch.randn(splits, tokens, width, device=device) if splits > 1 else torch.randn(tokens, width, device=device)
    q_norm, kv_norm = torch.rand(q_lora, device=device) + 0.5, torch.rand(RANK, device=device) + 0.5
    pool = poisoned(torch.empty(6, 3, 8, RANK + ROPE, device=device))
    expected = pool.clone()
    slots = torch.tensor([3, -1, 47, 8, 20], device=device)
    kept, expected_kept = (torch.empty(tokens, RANK + ROPE, device=device) for _ in range(2))
    args = (qkv, q_norm, kv_norm, 1e-6, cos, sin, positions)
    out = latent.split_qkv_a(*args, pool[:, 1], slots, kept)
    reference = latent_ref.split_qkv_a(*args, expected[:, 1], slots, expected_kept)
    assert_quantised(out, reference, exact=False)
    assert torch.equal(pool.isnan(), expected.isnan())
    assert_close(pool.nan_to_num(), expected.nan_to_num())
    assert_close(kept, expected_kept)


def test_append_and_gather(device):
    pool = torch.zeros(6, 2, 8, 24, device=device)
    rows, slots = torch.randn(4, 24, device=device), torch.tensor([0, 15, -1, 44], device=device)
    expected = pool.clone()
    latent.append_latent(pool[:, 1], rows, slots)
    latent_ref.append_latent(expected[:, 1], rows, slots)
    assert torch.equal(pool, expected)
    table = torch.tensor([5, 0, 1], dtype=torch.int32, device=device)
    for start, stop in ((0, 24), (3, 17), (8, 8), (23, 24)):
        out = latent.gather_latent(pool[:, 1], table, start, stop)
        assert torch.equal(out, latent_ref.gather_latent(pool[:, 1], table, start, stop))


def test_assemble_heads(device):
    cos, sin = angles(device)
    positions = torch.randint(0, 50, (5,), device=device)
    q = torch.randn(5, HEADS, 32 + ROPE, device=device)
    mine, theirs = q.clone(), q.clone()
    kv, k_pe = torch.randn(5, HEADS, 64, device=device), torch.randn(5, ROPE + 3, device=device)[:, 3:]
    k = prefill_heads.assemble_heads(mine, kv, k_pe, cos, sin, positions)
    assert_close(k, prefill_heads_ref.assemble_heads(theirs, kv, k_pe, cos, sin, positions))
    assert_close(mine, theirs)


def test_decode_reference_is_softmax_over_the_pages():
    tokens, requests = [1, 3, 0], 3
    total = torch.tensor([9, 20, 0], dtype=torch.int32)
    pool = poisoned(torch.empty(8, 8, RANK + ROPE))
    tables = torch.tensor([[5, 2, 7], [1, 4, 3], [0, 0, 0]], dtype=torch.int32)
    q = torch.randn(sum(tokens), HEADS, RANK + ROPE)
    keys = [torch.randn(int(n), RANK + ROPE) for n in total]
    for request in range(requests):
        for i, key in enumerate(keys[request]):
            pool[tables[request, i // 8], i % 8] = key
    out = mla_decode(q[..., :RANK], q[..., RANK:], pool, tables, torch.tensor(tokens), total, 0.1)
    start = 0
    for request, n in enumerate(tokens):
        for i in range(n):
            seen = keys[request][: int(total[request]) - n + i + 1]
            weights = (q[start + i] @ seen.T * 0.1).softmax(-1)
            torch.testing.assert_close(out[start + i], weights @ seen[:, :RANK], rtol=1e-4, atol=1e-5)
        start += n


def test_chunked_prefill_equals_whole(device):
    query_lens, key_lens = torch.tensor([4, 0, 3]), torch.tensor([9, 0, 3])
    q, k, v = (torch.randn(n, HEADS, d, device=device) for n, d in ((7, 24), (12, 24), (12, 16)))
    whole, whole_lse = mla_prefill_ref.mla_prefill(q, k, v, query_lens, key_lens, 0.2)
    context = torch.tensor([5, 0, 0])
    old = torch.cat((torch.arange(5), torch.arange(0)))
    new = torch.cat((torch.arange(5, 9), torch.arange(9, 12)))
    a = mla_prefill_ref.mla_prefill(q, k[old], v[old], query_lens, context, 0.2, causal=False)
    b = mla_prefill_ref.mla_prefill(q, k[new], v[new], query_lens, query_lens, 0.2)
    for merge in (mla_prefill.merge_states, mla_prefill_ref.merge_states):
        out, lse = merge(a[0], a[1].contiguous(), b[0], b[1].contiguous())
        torch.testing.assert_close(out, whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lse, whole_lse, rtol=1e-4, atol=1e-5)


def test_wrong_arguments_are_named(device):
    with pytest.raises(KernelArgumentError, match="latent is"):
        latent.append_latent(torch.zeros(2, 4, 8, device=device), torch.zeros(1, 7, device=device),
                             torch.zeros(1, dtype=torch.int64, device=device))  # fmt: skip
    with pytest.raises(KernelArgumentError, match="stop is"):
        latent.gather_latent(
            torch.zeros(2, 4, 8, device=device), torch.zeros(1, dtype=torch.int32, device=device), 0, 5
        )
