"""Each format read from a few rows in its own spelling; each malformed row refused by file, line and column."""

import gzip
from pathlib import Path

import pytest

from common.errors import InvalidInput
from loadgen.traces.read import read_trace
from loadgen.traces.row import Row

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3052, "input_length": 513, "output_length": 0, "hash_ids": [0, 14]}\n'
)
BAILIAN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 2.5, "input_length": 17, "output_length": 9,'
    ' "type": "text", "turn": 1, "hash_ids": [10, 11]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
SERVEGEN = "arrival_s,client_id,input_tokens,output_tokens,reason_ratio\n0.014,18,25,1131,0.2395\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n"


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_mooncake(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path, "m.jsonl.gz", MOONCAKE))
    assert rows == [Row(1000, 500, 0.0, (0, 1), 512), Row(513, 0, 3.052, (0, 14), 512)]


def test_bailian(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, "b.jsonl", BAILIAN)) == [Row(17, 9, 2.5, (10, 11), 16)]


def test_azure_with_its_seven_digits(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path, "a.csv", AZURE))
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(4808, 10), (3180, 8)]
    assert rows[0].arrival_s == 0.0
    assert rows[1].arrival_s == pytest.approx(0.052, abs=1e-6)


def test_servegen_and_lengths(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, "s.csv", SERVEGEN)) == [Row(25, 1131, 0.014)]
    assert read_trace(written(tmp_path, "l.csv", LENGTHS)) == [Row(3772, 54)]


def test_a_limit_reads_the_first_rows_and_disorder_is_sorted(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, "m.jsonl", MOONCAKE), limit=1)) == 1
    late_first = SERVEGEN + "0.001,2,7,3,0\n"
    assert [r.prompt_tokens for r in read_trace(written(tmp_path, "s.csv", late_first))] == [7, 25]


@pytest.mark.parametrize(
    ("text", "field", "limit"),
    [
        ("", "trace", "not empty"),
        ("a,b\n1,2\n", "x.csv: line 1", "Mooncake"),
        ("ContextTokens,GeneratedTokens\n1,2\n", "x.csv: line 1", "a column TIMESTAMP"),
        (AZURE.splitlines()[0] + "\n", "trace", "at least one row"),
        (AZURE + "2023-11-16 18:17:05,12\n", "x.csv: line 4", "3 cells"),
        (AZURE + "yesterday,12,1\n", "x.csv: line 4: TIMESTAMP", "YYYY"),
        (AZURE + "2023-11-16 18:17:05,-1,1\n", "x.csv: line 4: ContextTokens", "1 to"),
        (AZURE + "2023-11-16 18:17:05,0,1\n", "x.csv: line 4: ContextTokens", "1 to"),
        (AZURE + "2023-11-16 18:17:05,1e3,1\n", "x.csv: line 4: ContextTokens", "whole number"),
        (SERVEGEN + "nan,1,2,3,0\n", "x.csv: line 3: arrival_s", "finite"),
        (SERVEGEN + "-1,1,2,3,0\n", "x.csv: line 3: arrival_s", "at least 0"),
        (LENGTHS + "10,99999999999,1,1\n", "x.csv: line 3: num_decode_tokens", "0 to"),
        (MOONCAKE + "{broken\n", "x.csv: line 3", "JSON object"),
        ("{broken\n", "x.csv: line 1", "JSON object"),
        (MOONCAKE + "[1]\n", "x.csv: line 3", "JSON object"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 4, "output_length": 4}\n', "x.csv: line 3: hash_ids", "given"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 513, "output_length": 4, "hash_ids": [1]}\n',
            "x.csv: line 3: hash_ids",
            "2 for 513",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 3, "output_length": 4, "hash_ids": ["a"]}\n',
            "x.csv: line 3: hash_ids",
            "whole number",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 4, "hash_ids": [1]}\n',
            "x.csv: line 3: input_length",
            "whole number",
        ),
    ],
)
def test_malformed_rows_are_refused_by_place(tmp_path: Path, text: str, field: str, limit: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_trace(written(tmp_path, "x.csv", text))
    assert caught.value.field == field
    assert limit in caught.value.limit


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(AZURE.encode())[:-12])
    (tmp_path / "p.csv.gz").write_text("not gzip")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(AZURE.encode())[:10] + b"\xff" * 40)
    (tmp_path / "u.csv").write_bytes(b"\xff\xfe\xff")
    for name in ("t.csv.gz", "p.csv.gz", "z.csv.gz", "u.csv", "absent.csv"):
        with pytest.raises(InvalidInput) as caught:
            read_trace(tmp_path / name)
        assert caught.value.field == "trace"
