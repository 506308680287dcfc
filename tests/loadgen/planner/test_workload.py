"""Traces and their statistics."""

import gzip
import json

import pytest

from common.errors import InvalidInput
from loadgen.planner.duration import seconds
from loadgen.planner.trace import TraceRow, read_trace
from loadgen.planner.workload import PRESETS, Workload, from_rows, workload


def test_csv_lengths_and_statistics(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n100,10\n300,30\n")
    found = workload(str(path))
    assert (found.input_mean, found.output_mean) == (200.0, 20.0)
    assert found.input_cv == pytest.approx(0.5)
    # Weighted by output: (105 x 10 + 315 x 30) / 40.
    assert found.context_mean == pytest.approx((105 * 10 + 315 * 30) / 40)
    assert found.hit_rate == 0.0


def test_azure_times_and_gzip(tmp_path):
    path = tmp_path / "azure.csv.gz"
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,7,3\n2023-11-16 18:17:04.4799600,8,2\n"
    path.write_bytes(gzip.compress(text.encode()))
    rows = read_trace(path)
    assert [r.input_tokens for r in rows] == [7, 8]
    assert rows[1].arrival_s - rows[0].arrival_s == pytest.approx(0.5)


def test_prefix_hits_of_an_endless_cache(tmp_path):
    path = tmp_path / "shared.jsonl"
    records = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 5, "hash_ids": [9, 1, 2]},
        {"timestamp": 6000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    ]
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    rows = read_trace(path)
    # The last token of a prompt is always computed, and a block counts only behind a held prefix.
    assert [r.hit_tokens for r in rows] == [0, 1024, 0, 1023]
    assert rows[1].arrival_s == 3.0
    assert workload(str(path)).hit_rate == pytest.approx(2047 / 5024)


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("a.csv", "when,how_long\n1,2\n", "workload.columns"),
        ("a.csv", "input_tokens,elapsed\n1,2\n", "workload.columns"),
        ("a.csv", "input_tokens,output_tokens\nmany,2\n", "workload.row[1]"),
        ("a.csv", "input_tokens,output_tokens\n5,-2\n", "workload.row[1]"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\nnoon,5,2\n", "workload.row[1].arrival_s"),
        ("a.csv", "input_tokens,output_tokens\n", "workload"),
        ("a.jsonl", "[1, 2]\n", "workload.line[1]"),
        ("a.jsonl", "{\n", "workload.line[1]"),
        ("a.csv", "input_tokens,output_tokens\n0,0\n", "workload"),
    ],
)
def test_a_bad_trace_names_what_is_wrong(tmp_path, name, text, field):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        workload(str(path))
    assert caught.value.field == field


def test_missing_columns_say_which_are_wanted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("input_tokens,elapsed\n1,2\n")
    with pytest.raises(InvalidInput, match="GeneratedTokens"):
        workload(str(path))


def test_a_truncated_gzip_is_refused(tmp_path):
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(b"input_tokens,output_tokens\n1,2\n")[:-6])
    with pytest.raises(InvalidInput, match="readable"):
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
    with pytest.raises(InvalidInput):
        from_rows("x", "x", [TraceRow(5, 0, None, None)])


@pytest.mark.parametrize(("text", "value"), [("50ms", 0.05), ("2s", 2.0), ("0.25", 0.25), (" 700us ", 7e-4)])
def test_durations(text, value):
    assert seconds("itl", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["soon", "-1s", "0", "5 minutes", "nan", "inf", ""])
def test_bad_durations_name_the_field(text):
    with pytest.raises(InvalidInput) as caught:
        seconds("ttft", text)
    assert caught.value.field == "ttft"
