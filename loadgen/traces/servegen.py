"""Arrivals drawn from ServeGen's tables: seconds, client, input, output and reasoning share of the output."""

from collections.abc import Iterator

from loadgen.traces.row import Lines, Row, seconds, split_csv, whole

COLUMNS = ("arrival_s", "client_id", "input_tokens", "output_tokens")


def read_servegen(name: str, lines: Lines) -> Iterator[Row]:
    for place, cells in split_csv(name, lines, COLUMNS):
        yield Row(
            prompt_tokens=whole(place, "input_tokens", cells["input_tokens"]),
            output_tokens=whole(place, "output_tokens", cells["output_tokens"], low=0),
            arrival_s=seconds(place, "arrival_s", cells["arrival_s"]),
        )
