"""Measured kernel tables: tolerant of absence, strict about shape."""

import json

import pytest

from common.errors import InvalidInput
from loadgen.planner.fit import Constants
from loadgen.planner.measured import check_results, read_results
from loadgen.planner.stacks import committed_constants

CONSTANTS = Constants.from_json(committed_constants())
GEMM = {"op": "fp8_gemm", "backend": "deep_gemm", "shape": {"m": 256, "n": 7168, "k": 16384}, "us": 63.3}


def write(folder, results, machine=None):
    content = {"machine": machine or {"gpu": "NVIDIA H200"}, "date": "2026-11-30", "versions": {}, "results": results}
    (folder / "table.json").write_text(json.dumps(content))


def test_no_folder_means_no_rows(tmp_path):
    assert read_results(tmp_path / "absent") == []
    assert read_results(tmp_path) == []
    assert check_results([], CONSTANTS).residuals == ()


def test_the_best_backend_is_compared(tmp_path):
    write(tmp_path, [GEMM, {**GEMM, "backend": "slow", "us": 90.0}])
    check = check_results(read_results(tmp_path), CONSTANTS)
    (row,) = check.residuals
    assert (row.library, row.known_us) == ("deep_gemm", 63.3)
    assert abs(row.error) < 0.15


def test_every_modelled_op_is_understood_and_the_rest_is_named(tmp_path):
    results = [
        GEMM,
        {
            "op": "grouped_gemm_masked",
            "backend": "a",
            "shape": {"groups": 2, "m": 1024, "n": 4096, "k": 7168},
            "us": 105,
        },
        {"op": "mla_decode", "backend": "a", "shape": {"batch": 128, "query": 2, "cached": 5000}, "us": 620},
        {"op": "mla_prefill", "backend": "a", "shape": {"tokens": 4096, "heads": 128}, "us": 1167},
        {"op": "silu_mul_quant", "backend": "a", "shape": {"rows": 2048, "inner": 2048}, "us": 7},
        {
            "op": "MLA decode",
            "backend": "a",
            "shape": {"Requests": 128, "query": 2, "cached": 5000, "counts": "equal"},
            "us": 620.5,
        },
        {"op": "philox", "backend": "a", "shape": {"n": 5}, "us": 2},
        {"op": "MoE prefill layer", "backend": "a", "shape": {"prompts": 1, "tokens": 4096}, "us": 5678},
    ]
    write(tmp_path, results)
    check = check_results(read_results(tmp_path), CONSTANTS)
    assert len(check.residuals) == 6
    assert max(abs(r.error) for r in check.residuals) < 0.15
    assert check.not_modelled == ("MoE prefill layer", "philox")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"us": -1}, "table.json.results[0].us"),
        ({"us": "fast"}, "table.json.results[0].us"),
        ({"us": True}, "table.json.results[0].us"),
        ({"op": None}, "table.json.results[0].op"),
        ({"backend": 3}, "table.json.results[0].backend"),
        ({"shape": [1]}, "table.json.results[0].shape"),
        ({"shape": {"m": 1.5}}, "table.json.results[0].shape.m"),
    ],
)
def test_a_bad_row_names_file_and_field(tmp_path, change, field):
    write(tmp_path, [{**GEMM, **change}])
    with pytest.raises(InvalidInput) as caught:
        read_results(tmp_path)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "table.json"),
        ("[]", "table.json"),
        ('{"machine": 1, "results": []}', "table.json.machine"),
        ('{"machine": {}, "results": {}}', "table.json.results"),
        ('{"machine": {}, "results": [1]}', "table.json.results[0]"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, field):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_results(tmp_path)
    assert caught.value.field == field
