"""Prefill pools, the split of a fleet, and their bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidInput
from loadgen.planner.hardware import hardware
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.prefill_pool import handoff_bytes, prefill_point, queue_wait_s
from loadgen.planner.ratio import DECODE_LOAD, Fleet, balanced_cut, recommend, smallest_fleet
from loadgen.planner.stacks import stack
from loadgen.planner.workload import PRESETS

V3, H100, STACK = model_shape("deepseek-v3"), hardware("h100"), stack("measured-2026")
CHAT, REASONING = PRESETS["chat"], PRESETS["reasoning"]


def ask(load, gpus=32, **changes):
    fleet = Fleet(V3, H100, STACK, **{"ttft_s": 5.0, "itl_s": 0.06, **changes})
    return recommend(load, fleet, gpus=gpus)


@pytest.fixture(scope="module")
def chat():
    return ask(CHAT)


@pytest.fixture(scope="module")
def reasoning():
    return ask(REASONING)


def test_both_bounds_are_met_and_no_gpu_is_used_twice(chat, reasoning):
    for found in (chat, reasoning):
        assert found.prefill.ttft_p90_s <= 5.0 * (1 + 1e-6)
        assert found.prefill.ttft_mean_s < found.prefill.ttft_p90_s
        assert found.decode.output_tokens_per_s >= 1 / 0.06
        assert found.decode.memory.free_bytes >= 0
        assert found.prefill_gpus + found.decode_gpus + found.idle_gpus == 32
        low, high = found.interval
        assert low < found.requests_per_s < high


def test_rate_is_what_the_fuller_pool_carries(chat, reasoning):
    for found, load in ((chat, CHAT), (reasoning, REASONING)):
        prefill = found.prefill_groups * found.prefill.requests_per_s
        decode = found.decode_gpus * found.decode.gpu_tokens_per_s * DECODE_LOAD / load.output_mean
        assert found.requests_per_s == pytest.approx(min(prefill, decode))
        assert found.bound_by == ("prefill" if prefill < decode else "decode")
        assert found.output_tokens_per_s == pytest.approx(found.requests_per_s * load.output_mean)
        dollars = 32 * H100.gpu_hour_usd.value / 3600
        assert found.cost_per_million_output == pytest.approx(dollars / found.output_tokens_per_s * 1e6)


def test_long_prompts_want_prefill_and_long_answers_want_decode(chat, reasoning):
    assert chat.ratio >= 1 >= reasoning.ratio


def test_a_prefix_cache_is_worth_requests(chat):
    assert ask(CHAT.with_hit_rate(0.0)).requests_per_s < chat.requests_per_s


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 15}, "gpus"),
        ({"gpus": 4097}, "gpus"),
        ({"ttft_s": 0.01}, "ttft_s"),
        ({"itl_s": 0.0005}, "itl_s"),
        ({"itl_s": -1.0}, "itl_s"),
    ],
)
def test_bounds_that_nothing_meets_are_named(changes, field):
    with pytest.raises(InvalidInput) as caught:
        ask(CHAT, **changes)
    assert caught.value.field == field


def test_a_first_token_that_is_too_early_says_how_near_one_comes():
    with pytest.raises(InvalidInput, match=r"needs [0-9.]+ s when idle") as caught:
        ask(REASONING, ttft_s=0.01)
    nearest = float(caught.value.limit.split("needs ")[1].split(" s")[0])
    assert ask(REASONING, ttft_s=nearest * 1.01).prefill.ttft_p90_s <= nearest * 1.01
    with pytest.raises(InvalidInput):
        ask(REASONING, ttft_s=nearest * 0.98)


def test_a_token_that_is_too_fast_says_how_near_one_comes():
    with pytest.raises(InvalidInput, match="the fastest that fits makes a token in"):
        ask(REASONING, itl_s=0.001)


def test_handoff_bytes_and_time():
    assert handoff_bytes(V3, 5000) == 5000 * 71_424
    point = prefill_point(V3, H100, STACK, balanced_cut(V3, 32, 1), CHAT, pass_tokens=4096, ttft_s=10.0)
    assert point.handoff_s == pytest.approx(CHAT.input_mean * 71_424 / 47e9)
    assert point.exposed_handoff_s == pytest.approx(4096 * 71_424 / 47e9)


def test_a_later_bound_allows_more_load():
    loads = [
        prefill_point(V3, H100, STACK, balanced_cut(V3, 32, 1), CHAT, pass_tokens=4096, ttft_s=ttft_s)
        for ttft_s in (4.56, 4.6, 20.0)
    ]
    assert loads[0].load < loads[1].load < loads[2].load == pytest.approx(0.9)
    assert prefill_point(V3, H100, STACK, balanced_cut(V3, 32, 1), CHAT, pass_tokens=4096, ttft_s=0.5) is None


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    # M/M/1 at 80 %: 0.8 / 0.2 services; M/D/1 half of that.
    assert queue_wait_s(0.8, 1, 2.0, 1.0) == pytest.approx(8.0)
    assert queue_wait_s(0.8, 1, 2.0, 0.0) == pytest.approx(4.0)
    with pytest.raises(InvalidInput):
        queue_wait_s(1.0, 1, 1.0, 1.0)


@given(load=st.floats(0, 0.98), more=st.floats(0, 0.01), servers=st.integers(1, 128))
@settings(max_examples=60, deadline=None)
def test_waits_grow_with_load_and_shrink_with_servers(load, more, servers):
    here = queue_wait_s(load, servers, 1.0, 1.5)
    assert queue_wait_s(load + more, servers, 1.0, 1.5) >= here
    assert queue_wait_s(load, servers + 1, 1.0, 1.5) <= here * (1 + 1e-9)


def test_the_smallest_fleet_carries_its_rate_and_a_smaller_one_does_not(chat):
    fleet = Fleet(V3, H100, STACK, 5.0, 0.06)
    rate = 2 * chat.requests_per_s
    gpus = smallest_fleet(CHAT, fleet, requests_per_s=rate, sure=False)
    assert 32 < gpus <= 80
    assert recommend(CHAT, fleet, gpus=gpus).requests_per_s >= rate * (1 - 1e-9)
    assert recommend(CHAT, fleet, gpus=gpus - 8).requests_per_s < rate
    assert smallest_fleet(CHAT, fleet, requests_per_s=rate) >= gpus
    with pytest.raises(InvalidInput, match="requests_per_s"):
        smallest_fleet(CHAT, fleet, requests_per_s=0)


def test_copies_make_experts_divide():
    assert balanced_cut(V3, 96, 1).redundant_experts == 32
    assert balanced_cut(V3, 64, 1).redundant_experts == 64
    assert balanced_cut(V3, 11, 1) is None
