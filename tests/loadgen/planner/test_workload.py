"""Traces and their statistics."""

import json

import pytest

from common.errors import InvalidInput
from loadgen.planner.duration import seconds
from loadgen.planner.workload import PRESETS, Workload, hit_tokens, workload
from loadgen.traces.read import read_trace


def test_csv_lengths_and_statistics(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n100,10\n300,30\n")
    found = workload(str(path))
    assert (found.input_mean, found.output_mean) == (200.0, 20.0)
    assert found.input_cv == pytest.approx(0.5)
    # Weighted by output: (105 x 10 + 315 x 30) / 40.
    assert found.context_mean == pytest.approx((105 * 10 + 315 * 30) / 40)
    assert found.hit_rate == 0.0


def test_prefix_hits_of_an_endless_cache(tmp_path):
    path = tmp_path / "shared.jsonl"
    records = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 5, "hash_ids": [9, 1, 2]},
        {"timestamp": 6000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    ]
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    # The last token of a prompt is always computed, and a block counts only behind a held prefix.
    assert hit_tokens(read_trace(path)) == [0, 1024, 0, 1023]
    assert workload(str(path)).hit_rate == pytest.approx(2047 / 5024)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("when,how_long\n1,2\n", "ServeGen or lengths only"),
        ("num_prefill_tokens,elapsed\n1,2\n", "a column num_decode_tokens"),
        ("num_prefill_tokens,num_decode_tokens\nmany,2\n", "line 2: num_prefill_tokens = many"),
        ("num_prefill_tokens,num_decode_tokens\n", "at least one row"),
        ("num_prefill_tokens,num_decode_tokens\n5,0\n", "output tokens"),
    ],
)
def test_a_bad_trace_is_refused_and_says_why(tmp_path, text, words):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=words):
        workload(str(path))


def test_mean_and_percentile_lengths(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"input_mean": 1000, "output_mean": 200, "input_p90": 1500, "hit_rate": 0.5}')
    load = workload(str(path))
    assert (load.name, load.input_p90, load.new_mean, load.context_mean) == ("mine", 1500.0, 500.0, 1100.0)
    assert load.output_p90 == pytest.approx(200 * 2.302585, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"input_mean": 5}', "workload.output_mean"),
        ('{"input_mean": 5, "output_mean": 5, "mean": 5}', "workload.mean"),
        ('{"input_mean": "5", "output_mean": 5}', "workload.input_mean"),
        ("[]", "workload"),
        ("{", "workload"),
    ],
)
def test_bad_lengths_name_their_key(tmp_path, text, field):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        workload(str(path))
    assert caught.value.field == field


def test_an_unknown_workload_names_the_presets():
    with pytest.raises(InvalidInput, match="chat, code, long-context-code, reasoning"):
        workload("gossip")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_sound(name):
    load = workload(name)
    assert load.source
    assert 0 < load.new_mean <= load.input_mean <= load.input_p90 * 2 <= load.input_p99 * 2


def test_stretching_and_hits():
    load = PRESETS["code"].stretched(4).with_hit_rate(0.25)
    assert load.input_mean == pytest.approx(4 * PRESETS["code"].input_mean)
    assert load.new_mean == pytest.approx(3 * PRESETS["code"].input_mean)
    for hit_rate in (-0.1, 1.0):
        with pytest.raises(InvalidInput, match="last token"):
            load.with_hit_rate(hit_rate)
    with pytest.raises(InvalidInput, match="more than 0 tokens"):
        Workload("x", "x", 0, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(("text", "value"), [("50ms", 0.05), ("2s", 2.0), ("0.25", 0.25), (" 700us ", 7e-4)])
def test_durations(text, value):
    assert seconds("itl", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["soon", "-1s", "0", "5 minutes", "nan", "inf", ""])
def test_bad_durations_name_the_field(text):
    with pytest.raises(InvalidInput) as caught:
        seconds("ttft", text)
    assert caught.value.field == "ttft"
