"""FLOPs and bytes of kernels against closed forms, the report's formulas among them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.planner.attention_operations import (
    Queries,
    decode_attention,
    output_operations,
    prefill_attention,
    projection_operations,
)
from loadgen.planner.expert_operations import expected_maximum, expert_load, routed_operations
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.operations import KernelClass, grouped_gemm, routed_tile_rows, tile_rows

V3 = model_shape("deepseek-v3")


def named(operations, name):
    return next(o for o in operations if o.name == name)


def test_absorbed_decode_flops_and_bytes():
    # 128 requests, query 2, 5,000 cached, 128 heads: 576 + 512 multiply-adds a head and pair.
    operation = named(decode_attention(V3, Queries(128, 2, 5000), 1), "mla decode")
    pairs = 128 * (2 * 5000 + 3)
    assert operation.flops == 2 * 128 * (576 + 512) * pairs
    assert operation.flops == pytest.approx(356e9, rel=0.01)
    latent = 2 * 576 * 128 * 5002
    assert latent < operation.bytes < 1.2 * latent


def test_multi_head_prefill_flops():
    operation = named(prefill_attention(V3, Queries(1, 4096, 0), 1), "mha prefill")
    assert operation.flops == 2 * 128 * (192 + 128) * (4096 * 4097 / 2)
    assert operation.length == pytest.approx(4096, rel=0.001)


def test_a_cached_prefix_is_projected_up_again_but_not_recomputed():
    fresh, cached = Queries(1, 4096, 0), Queries(1, 1024, 3072)
    assert named(prefill_attention(V3, cached, 1), "kv_b").flops == named(prefill_attention(V3, fresh, 1), "kv_b").flops
    assert sum(o.flops for o in projection_operations(V3, cached, 1)) == pytest.approx(
        sum(o.flops for o in projection_operations(V3, fresh, 1)) / 4
    )


def test_one_token_meets_the_active_parameters():
    """Matrix FLOPs of a token over all layers are twice its active parameters, attention over a context aside."""
    queries = Queries(1, 1, 0)
    layer = [
        *projection_operations(V3, queries, 1),
        *[o for o in prefill_attention(V3, queries, 1) if o.kernel is KernelClass.GEMM],
        *output_operations(V3, queries, 1),
    ]
    expert = 2 * 3 * V3.hidden * V3.expert_intermediate
    per_moe = sum(o.flops for o in layer) + (V3.top_k + 1) * expert + 2 * V3.hidden * V3.experts
    per_dense = sum(o.flops for o in layer) + 2 * 3 * V3.hidden * V3.dense_intermediate
    head = 2 * V3.vocabulary * V3.hidden
    total = V3.moe_layers * per_moe + V3.dense_layers * per_dense + head
    assert total == pytest.approx(2 * V3.active_parameters(), rel=0.001)


def test_tensor_parallelism_splits_heads_but_not_the_latent_projection():
    queries = Queries(32, 2, 5000)
    one, four = projection_operations(V3, queries, 1), projection_operations(V3, queries, 4)
    assert named(four, "qkv_a").flops == named(one, "qkv_a").flops
    assert named(four, "q_b").flops == named(one, "q_b").flops / 4
    assert named(decode_attention(V3, queries, 4), "mla decode").flops == pytest.approx(
        named(decode_attention(V3, queries, 1), "mla decode").flops / 4
    )


def test_grouped_gemm_has_the_reports_flops_and_bytes():
    g, m, k, n = 2, 1024, 7168, 4096
    operation = grouped_gemm("experts", 4, g, m, n, k, n * k)
    assert operation.flops == 2 * g * m * k * n
    # The report counts every value as one byte; the output really is bf16.
    assert operation.bytes == g * (m * k + n * k + 2 * m * n)


def test_tokens_of_an_expert_follow_the_reports_formula():
    """m = batch x query x top-k x DP / experts: 64 at EP8 and 1,024 at EP128, not the 128 and 2,048 of its text."""
    for ep, m in ((8, 64), (128, 1024)):
        load = expert_load(V3, 128 * 2, ep, chance=False)
        assert load.mean_rows / load.slots == 128 * 2 * 8 * ep / 256 == m
        assert load.rows_per_active == pytest.approx(m, rel=1e-3)


def test_activated_experts_of_a_single_request():
    # The report: two tokens reach at most 16 experts, 2 a GPU at EP8.
    load = expert_load(V3, 2 / 8, 8, chance=False)
    assert load.mean_active == pytest.approx(2, rel=0.02)


def test_expected_maximum_of_normal_draws():
    # Known means of the largest of n standard normals.
    for draws, mean in ((1, 0.0), (2, 0.564), (8, 1.424), (100, 2.508)):
        assert expected_maximum(draws) == pytest.approx(mean, abs=0.03)


@given(tokens=st.floats(0.01, 5000), smaller=st.sampled_from([8, 16, 32, 64]))
@settings(max_examples=60, deadline=None)
def test_more_expert_parallelism_never_raises_expert_weight_traffic(tokens, smaller):
    """At fixed tokens a GPU, doubling EP halves the experts held: the weights a GPU reads never grow.

    The hottest rank's neither, from one token a GPU on; with less, the hottest of twice as many ranks may be hotter.
    """
    few, many = expert_load(V3, tokens, smaller), expert_load(V3, tokens, 2 * smaller)
    assert many.mean_active <= few.mean_active * (1 + 1e-9)
    assert tokens < 1 or many.active <= few.active * (1 + 1e-9)
    even = [expert_load(V3, tokens, ep, chance=False) for ep in (smaller, 2 * smaller)]
    before, after = (sum(o.bytes for o in routed_operations(V3, load)) for load in even)
    assert after <= before * (1 + 1e-9)


@given(rows=st.floats(0.01, 20_000), more=st.floats(0, 100))
@settings(max_examples=60, deadline=None)
def test_tiles_hold_every_row_and_never_shrink(rows, more):
    for tiles in (tile_rows, routed_tile_rows):
        assert tiles(rows) >= rows
        assert tiles(rows + more) >= tiles(rows)
