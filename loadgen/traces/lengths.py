"""Lengths alone, as Vidur publishes them: no times, so arrivals must come from a process."""

from collections.abc import Iterator

from loadgen.traces.row import Lines, Row, split_csv, whole

COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def read_lengths(name: str, lines: Lines) -> Iterator[Row]:
    for place, cells in split_csv(name, lines, COLUMNS):
        yield Row(
            prompt_tokens=whole(place, "num_prefill_tokens", cells["num_prefill_tokens"]),
            output_tokens=whole(place, "num_decode_tokens", cells["num_decode_tokens"], low=0),
        )
