"""Deployments: the sweep, its refusals, throughput, and the report's sentences about them."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidInput
from loadgen.planner.deployment import DecodePlan, decode_point, sweep
from loadgen.planner.hardware import hardware
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.pareto import largest_ratio, pareto_front, throughput_at
from loadgen.planner.report_points import BATCHES, EPS, TPS
from loadgen.planner.schedule import Schedule
from loadgen.planner.speculation import tokens_per_step
from loadgen.planner.stacks import stack

V3 = model_shape("deepseek-v3")
PLAN = DecodePlan(V3, hardware("h200"), stack("measured-2026"))


def test_a_whole_sweep_is_quick_and_loses_nothing():
    begin = time.process_time()
    points, refused = sweep(PLAN, eps=EPS, tps=TPS, batches=BATCHES, schedules=list(Schedule))
    assert time.process_time() - begin < 5
    assert len(points) + len(refused) == 5 * 4 * 8 * 3


@given(
    ep=st.sampled_from(EPS),
    tp=st.sampled_from(TPS),
    batch=st.integers(2, 64),
    schedule=st.sampled_from(list(Schedule)),
)
@settings(max_examples=30, deadline=None)
def test_throughput_is_tokens_over_time(ep, tp, batch, schedule):
    point = decode_point(PLAN, ep=ep, tp=tp, batch=batch, schedule=schedule)
    step_s = point.step.total_us / 1e6
    instances = 8 / tp
    assert point.node_tokens_per_s == pytest.approx(instances * batch * point.tokens_per_step / step_s)
    assert point.gpu_tokens_per_s * 8 == pytest.approx(point.node_tokens_per_s)
    assert point.output_tokens_per_s == pytest.approx(point.tokens_per_step / step_s)
    low, high = point.interval
    assert 0 < low < 1 < high


@given(ep=st.sampled_from(EPS), batch=st.integers(1, 60), schedule=st.sampled_from([Schedule.NONE, None]))
@settings(max_examples=30, deadline=None)
def test_a_larger_batch_or_a_longer_cache_is_never_faster(ep, batch, schedule):
    here = decode_point(PLAN, ep=ep, tp=1, batch=batch, schedule=schedule)
    more = decode_point(PLAN, ep=ep, tp=1, batch=batch + 1, schedule=schedule)
    longer = DecodePlan(V3, hardware("h200"), stack("measured-2026"), cached_tokens=5500)
    assert more.step.total_us >= here.step.total_us * 0.999
    assert decode_point(longer, ep=ep, tp=1, batch=batch, schedule=schedule).step.total_us >= here.step.total_us


def test_a_step_is_the_sum_of_its_parts():
    step = decode_point(PLAN, ep=64, tp=2, batch=32).step
    parts = 58 * step.layer.total_us + step.dense_us + step.draft_us + step.head_us
    assert step.total_us == pytest.approx(parts)


def test_deeper_drafts_gain_less_and_less():
    assert tokens_per_step(0.6, 1) == pytest.approx(1.6)
    gains = [tokens_per_step(0.6, depth) for depth in range(5)]
    assert all(b - a == pytest.approx(0.6 ** (i + 1)) for i, (a, b) in enumerate(pairwise(gains)))


def test_what_holds_a_layer_back_changes_with_the_deployment():
    one_node = decode_point(PLAN, ep=8, tp=1, batch=8, schedule=Schedule.NONE).step.layer
    many = decode_point(PLAN, ep=128, tp=1, batch=128, schedule=Schedule.NONE).step.layer
    assert one_node.bound_by == "memory"  # 32 experts' weights for a handful of tokens
    assert many.bound_by == "compute"  # attention, with the network close behind
    assert many.bounds_us["network"] > 10 * many.bounds_us["memory"]
    for layer in (one_node, many):
        low, high = layer.interval_us
        assert 0 < low < layer.total_us < high
        assert sum(layer.bounds_us.values()) == pytest.approx(layer.total_us)


def test_imbalance_and_copies_cost_time():
    even = decode_point(PLAN, ep=32, tp=1, batch=64).step.total_us
    skewed = DecodePlan(V3, hardware("h200"), stack("measured-2026"), imbalance=2.5)
    assert decode_point(skewed, ep=32, tp=1, batch=64).step.total_us > 1.1 * even


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"ep": 7, "tp": 1, "batch": 1}, "ep"),
        ({"ep": 12, "tp": 8, "batch": 1}, "ep"),
        ({"ep": 96, "tp": 1, "batch": 1}, "ep"),
        ({"ep": 48, "tp": 3, "batch": 1}, "tp"),
        ({"ep": 16, "tp": 16, "batch": 1}, "tp"),
        ({"ep": 8, "tp": 1, "batch": 0}, "batch"),
        ({"ep": 8, "tp": 1, "batch": 128}, "batch"),
        ({"ep": 8, "tp": 1, "batch": 1, "schedule": Schedule.DUAL_MICROBATCH}, "batch"),
    ],
)
def test_impossible_deployments_name_field_value_and_limit(arguments, field):
    with pytest.raises(InvalidInput) as caught:
        decode_point(PLAN, **arguments)
    assert caught.value.field == field
    assert caught.value.limit
    assert str(arguments[field]) == caught.value.value


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cached_tokens": -1}, "cached_tokens"),
        ({"cached_tokens": float("inf")}, "cached_tokens"),
        ({"cached_tokens": float("nan")}, "cached_tokens"),
        ({"acceptance": 1.5}, "acceptance"),
        ({"draft_tokens": -1}, "draft_tokens"),
    ],
)
def test_impossible_plans_are_refused_at_once(change, field):
    with pytest.raises(InvalidInput) as caught:
        DecodePlan(V3, hardware("h200"), stack("measured-2026"), **change)
    assert caught.value.field == field


def test_a_model_without_a_draft_layer_refuses_drafts():
    with pytest.raises(InvalidInput, match="no draft layer"):
        DecodePlan(model_shape("mixtral-8x7b"), hardware("h100"), stack("measured-2026"))


def test_unknown_stack_and_copies_below_zero():
    with pytest.raises(InvalidInput, match="report-2025"):
        stack("mine")
    plan = DecodePlan(V3, hardware("h200"), stack("measured-2026"), redundant_experts=-8)
    with pytest.raises(InvalidInput, match="at least 0"):
        decode_point(plan, ep=8, tp=1, batch=1)
    for imbalance in (0.5, float("nan"), 1e9):
        plan = DecodePlan(V3, hardware("h200"), stack("measured-2026"), imbalance=imbalance)
        with pytest.raises(InvalidInput, match="hottest rank over the mean"):
            decode_point(plan, ep=8, tp=1, batch=1)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_other_models_are_planned_too(name):
    plan = DecodePlan(model_shape(name), hardware("gb200"), stack("measured-2026"), draft_tokens=0)
    point = decode_point(plan, ep=8, tp=1, batch=16)
    assert point.output_tokens_per_s > 50


def test_no_front_point_is_beaten_and_every_other_is():
    points, _ = sweep(PLAN, eps=(32,), tps=TPS, batches=BATCHES)
    front = pareto_front(points)

    def beats(a, b):
        return a.output_tokens_per_s >= b.output_tokens_per_s and a.node_tokens_per_s >= b.node_tokens_per_s

    assert not any(beats(a, b) for a in front for b in front if a is not b)
    kept = {id(p) for p in front}
    assert all(id(p) in kept or any(beats(f, p) for f in front) for p in points)


def test_fronts_are_read_between_points_and_not_beyond_the_fastest():
    points, _ = sweep(PLAN, eps=(32,), tps=(1,), batches=(16, 32))
    front = pareto_front(points)
    fast, slow = front[0], front[-1]
    assert throughput_at(front, slow.output_tokens_per_s) == pytest.approx(slow.node_tokens_per_s)
    middle = (fast.output_tokens_per_s + slow.output_tokens_per_s) / 2
    assert throughput_at(front, middle) == pytest.approx((fast.node_tokens_per_s * slow.node_tokens_per_s) ** 0.5)
    assert throughput_at(front, fast.output_tokens_per_s + 1) == 0.0
    assert throughput_at([], 10.0) == 0.0
    assert largest_ratio(front, front, [middle]) == (pytest.approx(1.0), middle)


def test_drafts_need_the_draft_layer_in_memory():
    """One more layer of everything: its weights and 1,152 bytes a cached token (71,424 instead of 70,272)."""
    with_drafts, without = (
        decode_point(replace(PLAN, draft_tokens=drafts), ep=32, tp=1, batch=16).memory for drafts in (1, 0)
    )
    assert with_drafts.cache_bytes - without.cache_bytes == 16 * PLAN.cached_tokens * 1152
    assert with_drafts.experts_bytes - without.experts_bytes == 256 // 32 * PLAN.model.expert_bytes()
