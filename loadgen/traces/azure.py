"""Azure LLM inference traces (Azure/AzurePublicDataset): wall-clock times of 100 ns, context and generated tokens."""

from collections.abc import Iterator
from datetime import UTC, datetime

from common.errors import InvalidInput
from loadgen.traces.row import Lines, Row, split_csv, whole

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(name: str, lines: Lines) -> Iterator[Row]:
    first_s: float | None = None
    for place, cells in split_csv(name, lines, COLUMNS):
        at_s = _clock_s(place, cells["TIMESTAMP"])
        first_s = at_s if first_s is None else first_s
        yield Row(
            prompt_tokens=whole(place, "ContextTokens", cells["ContextTokens"]),
            output_tokens=whole(place, "GeneratedTokens", cells["GeneratedTokens"], low=0),
            arrival_s=at_s - first_s,
        )


def _clock_s(place: str, text: str) -> float:
    """Seconds since 1970. `datetime` reads at most six digits of a second; the traces have seven."""
    whole_part, _, fraction = text.removesuffix("+00:00").partition(".")
    try:
        moment = datetime.fromisoformat(whole_part).replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except ValueError as error:
        raise InvalidInput(f"{place}: TIMESTAMP", text, "YYYY-MM-DD HH:MM:SS.fffffff") from error
