"""Read recorded workloads: lengths, times and shared prefixes, from CSV or JSON lines, gzipped or not."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from common.errors import InvalidInput

# Column names in use: (input, output, time). Times are seconds, milliseconds or ISO dates.
_INPUTS = ("input_length", "ContextTokens", "input_tokens", "num_prefill_tokens")
_OUTPUTS = ("output_length", "GeneratedTokens", "output_tokens", "num_decode_tokens")
_TIMES = ("timestamp", "TIMESTAMP", "arrival_s")
_HASH_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: tokens in and out, arrival in seconds if recorded, tokens that an endless cache would have held."""

    input_tokens: int
    output_tokens: int
    arrival_s: float | None
    hit_tokens: int | None


def read_trace(path: Path) -> list[TraceRow]:
    """All rows of a trace.

    Accepts Mooncake JSON lines (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512 tokens), Azure
    CSV (`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`), ServeGen samples (`arrival_s`, `input_tokens`,
    `output_tokens`) and plain lengths (`num_prefill_tokens`, `num_decode_tokens`).

    Raises:
        InvalidInput: unreadable, empty, a missing column, or a length that is not a positive integer.
    """
    seen: set[int] = set()
    rows = [_row(record, number, seen) for number, record in enumerate(_records(path), start=1)]
    if not rows:
        raise InvalidInput("workload", path, "a trace with at least one request")
    return rows


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInput("workload", path, f"a readable CSV or JSON-lines file ({error})") from error
    if path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        yield from _json_lines(text)
    else:
        yield from csv.DictReader(io.StringIO(text))


def _json_lines(text: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"workload.line[{number}]", line, f"a JSON object ({error})") from error
        if not isinstance(record, dict):
            raise InvalidInput(f"workload.line[{number}]", line, "a JSON object")
        yield record


def _row(record: Mapping[str, Any], number: int, seen: set[int]) -> TraceRow:
    tokens_in = _length(record, _INPUTS, number)
    tokens_out = _length(record, _OUTPUTS, number)
    hit: int | None = None
    if "hash_ids" in record:
        hit = _leading_hits(record["hash_ids"], seen, tokens_in)
    return TraceRow(tokens_in, tokens_out, _arrival_s(record, number), hit)


def _length(record: Mapping[str, Any], names: Iterable[str], number: int) -> int:
    names = tuple(names)
    value = next((record[name] for name in names if name in record), None)
    if value is None:
        raise InvalidInput("workload.columns", ", ".join(record), f"one of {', '.join(names)}")
    try:
        length = int(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"workload.row[{number}]", value, "a whole number of tokens") from error
    if length < 0:
        raise InvalidInput(f"workload.row[{number}]", value, "at least 0 tokens")
    return length


def _arrival_s(record: Mapping[str, Any], number: int) -> float | None:
    name = next((name for name in _TIMES if name in record), None)
    if name is None:
        return None
    value = record[name]
    try:
        if name == "TIMESTAMP":
            return datetime.fromisoformat(str(value)[:26]).timestamp()
        return float(value) / (1000 if name == "timestamp" else 1)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"workload.row[{number}].{name}", value, "a time") from error


def _leading_hits(hashes: Iterable[int], seen: set[int], tokens_in: int) -> int:
    """Tokens of the leading blocks seen before, at most all but the last token; then remember every block."""
    ids = list(hashes)
    held = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
    seen.update(ids)
    return min(held * _HASH_BLOCK_TOKENS, max(tokens_in - 1, 0))
