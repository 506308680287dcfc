"""Mooncake (kvcache-ai/Mooncake, FAST'25): JSON lines with chained 512-token block hashes, times in milliseconds.

Alibaba's Bailian traces have the same keys with 16-token blocks, times in seconds and chat ids.
"""

import json
from collections.abc import Iterator

from common.errors import InvalidInput
from loadgen.traces.row import Lines, Row, seconds, whole

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
MAX_HASH = 2**63 - 1


def read_mooncake(name: str, lines: Lines) -> Iterator[Row]:
    return _rows(name, lines, MOONCAKE_BLOCK_TOKENS, ticks_per_s=1000.0)


def read_bailian(name: str, lines: Lines) -> Iterator[Row]:
    return _rows(name, lines, BAILIAN_BLOCK_TOKENS, ticks_per_s=1.0)


def _rows(name: str, lines: Lines, block_tokens: int, ticks_per_s: float) -> Iterator[Row]:
    for number, line in lines:
        if not line.strip():
            continue
        place = f"{name}: line {number}"
        try:
            cells = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(place, line, "a JSON object") from error
        if not isinstance(cells, dict):
            raise InvalidInput(place, line, "a JSON object")
        for key in KEYS:
            if key not in cells:
                raise InvalidInput(f"{place}: {key}", "missing", "given")
        prompt_tokens = whole(place, "input_length", cells["input_length"])
        hashes = cells["hash_ids"]
        if not isinstance(hashes, list):
            raise InvalidInput(f"{place}: hash_ids", hashes, "a list")
        needed = -(-prompt_tokens // block_tokens)
        if len(hashes) != needed:
            raise InvalidInput(f"{place}: hash_ids", f"{len(hashes)} ids", f"{needed} for {prompt_tokens} tokens")
        yield Row(
            prompt_tokens=prompt_tokens,
            output_tokens=whole(place, "output_length", cells["output_length"], low=0),
            arrival_s=seconds(place, "timestamp", cells["timestamp"]) / ticks_per_s,
            hash_ids=tuple(whole(place, "hash_ids", h, low=-MAX_HASH, high=MAX_HASH) for h in hashes),
            hash_block_tokens=block_tokens,
        )
