"""One request of a trace, and the checks that every format shares."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from common.errors import InvalidInput

# The longest context that DeepSeek-V3 has, times 64: anything beyond is a broken row, not a long one.
MAX_TOKENS = 163_840 * 64

Lines = Iterable[tuple[int, str]]  # (line number from 1, text without the line end)
Reader = Callable[[str, Lines], Iterator["Row"]]  # (trace name, lines) -> rows


@dataclass(frozen=True, slots=True)
class Row:
    """`hash_ids` name blocks of `hash_block_tokens`; equal ids are equal text. The last block may be partial."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 0


def whole(place: str, column: str, value: object, low: int = 1, high: int = MAX_TOKENS) -> int:
    """`value` as an integer from `low` to `high`. `place` is file and line."""
    try:
        number = int(str(value))
    except ValueError as error:
        raise InvalidInput(f"{place}: {column}", value, "a whole number") from error
    if not low <= number <= high:
        raise InvalidInput(f"{place}: {column}", value, f"{low} to {high}")
    return number


def seconds(place: str, column: str, value: object) -> float:
    """`value` as finite seconds of at least 0."""
    try:
        number = float(str(value))
    except ValueError as error:
        raise InvalidInput(f"{place}: {column}", value, "a number") from error
    if not (math.isfinite(number) and number >= 0):
        raise InvalidInput(f"{place}: {column}", value, "a finite number of at least 0")
    return number


def split_csv(name: str, lines: Lines, columns: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(place, cells by column) of each data line; the header must name `columns`. Traces have no quoted cells."""
    header: list[str] = []
    for number, line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if not header:
            header = cells
            for column in columns:
                if column not in header:
                    raise InvalidInput(f"{name}: header", line, f"a column {column}")
        elif line.strip():
            place = f"{name}: line {number}"
            if len(cells) != len(header):
                raise InvalidInput(place, line, f"{len(header)} cells")
            yield place, dict(zip(header, cells, strict=True))
