"""What only a GPU can show: libraries behind our launchers, large pools, odd large shapes, bits that repeat."""

import pytest
import torch

from kernels import latent, latent_ref, mla_decode, mla_prefill
from kernels.absorb import absorb_query, project_value
from kernels.fp8_gemm import fp8_gemm, fp8_gemm_partial
from kernels.fp8_gemm_ahead import AheadTile, fp8_gemm_ahead
from kernels.fp8_gemm_deepgemm import fp8_gemm_deepgemm, grouped_gemm_contiguous, grouped_gemm_masked
from kernels.fp8_gemm_ref import fp8_gemm as fp8_gemm_reference
from kernels.grouped_gemm import grouped_gemm
from kernels.grouped_gemm_ref import grouped_gemm as grouped_reference
from kernels.mla_decode_ref import mla_decode as decode_reference
from kernels.mla_decode_split import mla_decode_split
from kernels.mla_prefill_ref import mla_prefill as prefill_reference
from kernels.pdl import in_order
from kernels.permute import row_experts
from kernels.tiles import scale_buffer
from tests.kernels.closeness import assert_close, quantised, relative_error, weight

pytestmark = pytest.mark.gpu
HEADS, RANK, ROPE = 128, 512, 64


@pytest.mark.parametrize("rows", [1, 33, 64, 130, 257])
@pytest.mark.parametrize(("columns", "inner"), [(2112, 7168), (24576, 1536)])
def test_dense_backends(rows, columns, inner, device):
    x, w = quantised(rows, inner, device), weight(columns, inner, device=device)
    reference = fp8_gemm_reference(*x, *w, out_dtype=torch.float32)
    for out in (fp8_gemm(*x, *w), fp8_gemm_deepgemm(*x, *w)):
        assert_close(out, reference, torch.bfloat16)
    partial = fp8_gemm_partial(*x, *w)
    assert_close(partial.float().sum(0) if partial.dim() == 3 else partial, reference, torch.bfloat16)
    assert torch.equal(fp8_gemm(*x, *w), fp8_gemm(*x, *w))


@pytest.mark.parametrize(
    "tile",
    [
        AheadTile(16, groups=2, splits=2, stages=6, along="k", registers=64),
        AheadTile(64, groups=2, splits=2, stages=6, along="k", share=True, run=1, ahead=2),
        AheadTile(64, groups=2, stages=12, along="k", ahead=3),
        AheadTile(16, splits=2, stages=4, registers=80, ahead=2),
        AheadTile(64, along="tokens", splits=2, stages=4, ahead=1),
        AheadTile(128, groups=2, along="tokens", splits=2, stages=4, share=True, run=1),
        AheadTile(16, splits=3, stages=4, registers=80),
        AheadTile(32, groups=3, stages=4),
        AheadTile(64, groups=2, splits=2, stages=4, share=True, run=4),
        AheadTile(128, groups=3, splits=3, stages=4, share=True, run=1),
        AheadTile(128, groups=2, splits=2, stages=5),
    ],
)
@pytest.mark.parametrize(("rows", "columns", "inner"), [(5, 200, 1536), (130, 1000, 1152)])
def test_ahead(rows, columns, inner, tile, device):
    x, w = quantised(rows, inner, device), weight(columns, inner, device=device)
    reference = fp8_gemm_reference(*x, *w, out_dtype=torch.float32)
    for _ in range(2):  # the second finds the counters as the first left them
        assert_close(fp8_gemm_ahead(*x, *w, tile), reference, torch.bfloat16)
    assert torch.equal(fp8_gemm_ahead(*x, *w, tile), fp8_gemm_ahead(*x, *w, tile))
    assert_close(fp8_gemm_ahead(*x, *w, tile, reduce=False).float().sum(0), reference, torch.bfloat16)


REPEATED = [
    (16, 2112, 7168), (32, 2112, 7168), (64, 2112, 7168), (128, 2112, 7168),
    (32, 24576, 1536), (64, 24576, 1536), (128, 24576, 1536),
    (1, 7168, 16384), (32, 7168, 16384), (100, 7168, 16384),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "inner"), REPEATED)
def test_ahead_repeats_its_bits(rows, columns, inner, device):
    """Between calls the weight leaves L2, so that copies come at other times; in a graph, kernels overlap as well."""
    w, other = (weight(columns, inner, device=device) for _ in range(2))
    xs = [quantised(rows, inner, device) for _ in range(10)]
    gemms = (fp8_gemm, fp8_gemm_partial)
    expected = [gemm(*x, *w) for x in xs for gemm in gemms]

    def again():
        outs = []
        for x in xs:
            for gemm in gemms:
                fp8_gemm(*x, *other)
                outs.append(gemm(*x, *w))
        return outs

    def agree(outs):
        return all(torch.equal(out, right) for out, right in zip(outs, expected, strict=True))

    for _ in range(5):
        assert agree(again())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = again()
    for _ in range(30):
        for out in outs:
            out.zero_()
        graph.replay()
        assert agree(outs)


@pytest.mark.parametrize("ours", [False, True])
def test_attention_in_a_graph_waits_for_its_queries(ours, device):
    requests, blocks = 3, 12
    pool = torch.randn(blocks, 64, RANK + ROPE, device=device).to(torch.bfloat16)
    tables = torch.arange(blocks, dtype=torch.int32, device=device).view(requests, -1)
    lens = torch.full((requests,), 250, dtype=torch.int32, device=device)
    k_b = torch.randn(HEADS, RANK, 128, device=device).to(torch.float8_e4m3fn)
    scale = torch.rand(HEADS, RANK // 128, device=device)
    cos, sin = (torch.rand(300, ROPE // 2, device=device) for _ in range(2))
    q = torch.randn(requests, HEADS, 128 + ROPE, device=device).to(torch.bfloat16)
    positions = torch.full((requests,), 249, device=device)
    attention = mla_decode.FlashMla()

    def chain():
        absorbed = absorb_query(q, k_b, scale, cos, sin, positions, early=ours)
        if ours:
            return absorbed, mla_decode_split(absorbed, pool, tables, lens, 0.07)
        return absorbed, attention.run(absorbed[:, None], pool, tables, lens, 0.07)

    expected = chain()[1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        absorbed, out = chain()
    for _ in range(5):
        absorbed.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("requests", [1, 4, 8, 12, 64])
def test_what_follows_attention_finds_it_finished(requests, device):
    """Ours, and a library's; also where no request is split, so that FlashMLA's last kernel has nothing to wait for."""
    blocks = -(-3000 // 64)
    pool = torch.randn(blocks, 64, RANK + ROPE, device=device).to(torch.bfloat16)
    tables = torch.arange(blocks, dtype=torch.int32).repeat(requests, 1)
    lens = torch.full((requests,), 3000, dtype=torch.int32)
    shape = mla_decode.AttentionShape(HEADS, RANK, ROPE, 64, 0.07)
    attention = mla_decode.DecodeAttention(device, shape, requests, 1, blocks)
    attention.plan(tables, torch.ones_like(lens), lens)
    q = torch.randn(requests, HEADS, RANK + ROPE, device=device).to(torch.bfloat16)
    v_b, v_scale = (
        torch.randn(HEADS, 128, RANK, device=device).to(torch.float8_e4m3fn),
        torch.rand(HEADS, 4, device=device),
    )

    def chain():
        attended = attention.run(q, pool)
        with in_order(not attention.dependent):
            return attended, *project_value(attended, v_b, v_scale)

    expected = [each.clone() for each in chain()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = chain()
    for _ in range(20):
        outs[0].fill_(float("nan"))
        graph.replay()
        for out, right in zip(outs, expected, strict=True):
            assert torch.equal(out.float(), right.float())


def test_grouped_backends_agree(device):
    w, w_scale = weight(4, 512, 1024, device=device)
    counts = torch.tensor([70, 0, 1, 200], dtype=torch.int32, device=device)
    padded = (counts + 127) // 128 * 128
    rows = int(padded.sum())
    x, x_scale = quantised(rows, 1024, device)
    reference = grouped_reference(x, x_scale, w, w_scale, counts, align=128, out_dtype=torch.float32)
    owners = row_experts(counts, rows, 128)
    live = owners >= 0
    for rows_hint in (8, 200):
        ours = grouped_gemm(x, x_scale, w, w_scale, counts, align=128, expected_rows=rows_hint)
        assert_close(ours[live], reference[live], torch.bfloat16)
        again = grouped_gemm(x, x_scale, w, w_scale, counts, align=128, expected_rows=rows_hint)
        assert torch.equal(ours[live], again[live])
    contiguous = grouped_gemm_contiguous(x, x_scale, w, w_scale, owners)
    assert_close(contiguous[live], reference[live], torch.bfloat16)
    masked_x = x.view(torch.uint8).new_zeros(4, 256, 1024).view(torch.float8_e4m3fn)
    masked_scale = torch.ones(4, 8, 256, device=device).transpose(1, 2)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        masked_x[expert, :count] = x[start : start + count]
        masked_scale[expert, :count] = x_scale[start : start + count]
        start += -(-count // 128) * 128
    masked = grouped_gemm_masked(masked_x, masked_scale, w, w_scale, counts, 64)
    for out in (masked, *(grouped_gemm(masked_x, masked_scale, w, w_scale, counts, expected_rows=n) for n in (8, 200))):
        assert_close(torch.cat([out[e, :c] for e, c in enumerate(counts.tolist())]), reference[live], torch.bfloat16)


def test_latent_in_a_pool_past_2_32_elements(device):
    blocks = 2000  # x 62 x 64 x 576 = 4.6e9 elements
    pool = torch.empty(blocks, 62, 64, RANK + ROPE, dtype=torch.bfloat16, device=device)
    view = pool[:, 61]
    rows = torch.randn(5, RANK + ROPE, device=device).to(torch.bfloat16)
    slots = torch.tensor([0, 955 * 64 + 1, 1999 * 64 + 63, -1, 1000 * 64], device=device)
    latent.append_latent(view, rows, slots)
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert torch.equal(view[slot // 64, slot % 64], rows[i])
    table = torch.tensor([1999, 955], dtype=torch.int32, device=device)
    view[1999].normal_()
    view[955].normal_()
    assert torch.equal(latent.gather_latent(view, table, 60, 128), latent_ref.gather_latent(view, table, 60, 128))


@pytest.mark.parametrize(
    ("query_lens", "total_lens"), [([1, 1, 1], [5, 64, 700]), ([2, 2], [130, 2]), ([4, 1], [65, 1])]
)
def test_mla_decode(query_lens, total_lens, device):
    pool = torch.full((40, 3, 64, RANK + ROPE), float("nan"), dtype=torch.bfloat16, device=device)
    view = pool[:, 1]
    view.normal_()
    requests = len(query_lens)
    tables = torch.randperm(40)[: requests * 11].view(requests, 11).to(torch.int32)
    lens, total = torch.tensor(query_lens, dtype=torch.int32), torch.tensor(total_lens, dtype=torch.int32)
    q = torch.randn(int(lens.sum()), HEADS, RANK + ROPE, device=device).to(torch.bfloat16)
    reference = decode_reference(q[..., :RANK], q[..., RANK:], view, tables.to(device), lens, total, 0.07)
    out = mla_decode.mla_decode(q[..., :RANK], q[..., RANK:], view, tables.to(device), lens, total, 0.07)
    assert_close(out, reference)
    if len(set(query_lens)) == 1:
        batched = q.view(requests, query_lens[0], HEADS, RANK + ROPE)
        for planned in (False, True):
            attention = mla_decode.FlashMla()
            if planned:
                attention.plan(total, device, query_len=query_lens[0], heads=HEADS)
            flash = attention.run(batched, view, tables.to(device), total.to(device), 0.07)
            assert_close(flash.flatten(0, 1), reference)


@pytest.mark.parametrize(
    ("requests", "query_len", "uniform"), [(3, 2, True), (1, 1, True), (3, 2, False), (12, 1, True), (7, 4, True)]
)
def test_a_captured_batch_follows_its_plan(requests, query_len, uniform, device):
    """Ours and both libraries: a replay attends to what the last plan says, in a pool of a block stride of its own."""
    pool = torch.randn(40, 3, 64, RANK + ROPE, device=device).to(torch.bfloat16)
    shape = mla_decode.AttentionShape(HEADS, RANK, ROPE, 64, 0.07)
    attention = mla_decode.DecodeAttention(device, shape, requests, query_len if uniform else None, 8)
    q = torch.randn(requests * query_len, HEADS, RANK + ROPE, device=device).to(torch.bfloat16)
    lens, graph = torch.full((requests,), query_len, dtype=torch.int32), torch.cuda.CUDAGraph()
    for step in range(3):
        total = torch.randint(query_len, 500, (requests,), dtype=torch.int32)
        tables = torch.randint(0, 40, (requests, 8), dtype=torch.int32)
        attention.plan(tables, lens, total)
        if step == 0:
            attention.run(q, pool[:, 1])
            with torch.cuda.graph(graph):
                out = attention.run(q, pool[:, 1])
        graph.replay()
        reference = decode_reference(q[..., :RANK], q[..., RANK:], pool[:, 1], tables.to(device), lens, total, 0.07)
        assert_close(out, reference)


@pytest.mark.parametrize(("query_len", "cached"), [(1, 61), (2, 59), (2, 60)])
def test_decode_sees_what_its_own_step_appends(query_len, cached, device):
    """Steps across the end of a page: those of earlier steps are read ahead, what a step writes is not."""
    requests = 3
    tables = torch.randperm(requests * 3, device=device).view(requests, 3).int()
    view = torch.full((requests * 3, 2, 64, RANK + ROPE), float("nan"), dtype=torch.bfloat16, device=device)[:, 1]

    def slots(first, count):
        position = torch.arange(first, first + count, device=device).repeat(requests, 1)
        return (tables.long().gather(1, position // 64) * 64 + position % 64).flatten()

    def normal(*shape):
        return torch.randn(shape, device=device).to(torch.bfloat16)

    latent.append_latent(view, normal(requests * cached, RANK + ROPE), slots(0, cached))
    tokens = requests * query_len
    q, k_b = normal(tokens, HEADS, 128 + ROPE), torch.randn(HEADS, RANK, 128, device=device).to(torch.float8_e4m3fn)
    scale = torch.rand(HEADS, RANK // 128, device=device) * 0.1
    cos, sin = (torch.rand(1, ROPE // 2, device=device) for _ in range(2))
    positions = torch.zeros(tokens, dtype=torch.int64, device=device)
    rows, at = normal(tokens, RANK + ROPE), slots(cached, query_len)
    lens = torch.full((requests,), cached + query_len, dtype=torch.int32, device=device)

    def chain():
        latent.append_latent(view, rows, at)
        absorbed = absorb_query(q, k_b, scale, cos, sin, positions, early=True)
        return absorbed, mla_decode_split(absorbed, view, tables, lens, 0.07, query_len=query_len)

    torch.cuda.synchronize()
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        absorbed, out = chain()
    for step in range(6):
        rows.copy_(normal(tokens, RANK + ROPE))
        at.copy_(slots(cached + step * query_len, query_len))
        lens.fill_(cached + (step + 1) * query_len)
        for _ in range(5):
            view[at // 64, at % 64] = float("nan")
            graph.replay()
            query_lens = torch.full_like(lens, query_len)
            reference = decode_reference(
                absorbed[..., :RANK], absorbed[..., RANK:], view, tables, query_lens, lens, 0.07
            )
            assert_close(out, reference)


@pytest.mark.parametrize("heads", [128, 80, 16])
@pytest.mark.parametrize(
    ("query_len", "total_lens"),
    [(1, [5001]), (1, [1]), (1, [129]), (2, [2]), (2, [65, 1000, 192]), (1, [1, 2, 63, 64, 65, 128, 3000, 4999])],
)
def test_split_decode_reads_no_further_than_a_request(query_len, total_lens, heads, device):
    """For one piece a token, for the default, and for more pieces than some have pages."""
    requests, blocks = len(total_lens), 80
    pool = torch.full((requests * blocks, 2, 64, RANK + ROPE), float("nan"), dtype=torch.bfloat16, device=device)
    tables = torch.randperm(requests * blocks, device=device).view(requests, blocks)
    for table, length in zip(tables, total_lens, strict=True):
        rows = torch.randn(blocks * 64, RANK + ROPE, device=device).to(torch.bfloat16)
        rows[length:] = float("nan")
        pool[table, 1] = rows.view(blocks, 64, -1)
    q = torch.randn(requests * query_len, heads, RANK + ROPE, device=device).to(torch.bfloat16)
    lens = torch.tensor(total_lens, dtype=torch.int32, device=device)
    args = (pool[:, 1], tables.int(), lens)
    reference = decode_reference(q[..., :RANK], q[..., RANK:], *args[:2], torch.full_like(lens, query_len), lens, 0.07)
    for splits in (1, None, 64):
        assert_close(mla_decode_split(q, *args, 0.07, query_len=query_len, splits=splits), reference)


@pytest.mark.parametrize(("requests", "query_len"), [(1, 1), (2, 2), (8, 1)])
def test_split_decode_repeats_its_bits(requests, query_len, device):
    """Also out of a cold L2, and with other lengths than the graph was captured with."""
    pool = torch.randn(requests * 80, 64, RANK + ROPE, device=device).to(torch.bfloat16)
    tables = torch.randperm(requests * 80, device=device).view(requests, 80).int()
    lens = torch.full((requests,), 5000, dtype=torch.int32, device=device)
    q = torch.randn(requests * query_len, HEADS, RANK + ROPE, device=device).to(torch.bfloat16)
    flush = torch.empty(128 << 20, dtype=torch.uint8, device=device)

    def call():
        return mla_decode_split(q, pool, tables, lens, 0.07, query_len=query_len)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for total in (5000, 3000, 64, query_len):
        lens.fill_(total)
        torch.cuda.synchronize()
        expected = call()
        for i in range(20):
            out.fill_(float("nan"))
            if i % 2:
                flush.fill_(i)
            graph.replay()
            assert torch.equal(out, expected)


def test_mla_prefill(device):
    query_lens, key_lens = torch.tensor([70, 1, 130]), torch.tensor([200, 1, 130])
    q = torch.randn(201, 8, 192, device=device).to(torch.bfloat16)
    k, v = (torch.randn(331, 8, d, device=device).to(torch.bfloat16) for d in (192, 128))
    out, lse = mla_prefill.mla_prefill(q, k, v, query_lens, key_lens, 0.07)
    reference, reference_lse = prefill_reference(q, k, v, query_lens, key_lens, 0.07)
    assert_close(out, reference)
    torch.testing.assert_close(lse, reference_lse, rtol=1e-3, atol=1e-3)
    one, one_lse = mla_prefill.attend_cudnn(q[71:], k[201:], v[201:], 0.07, causal=True)
    assert relative_error(one, reference[71:]) < 6e-3
    torch.testing.assert_close(one_lse, reference_lse[71:], rtol=1e-3, atol=1e-3)


def test_scale_buffer_is_what_deepgemm_loads(device):
    scale = scale_buffer(5, 4, device)
    assert scale.stride() == (1, 8)
