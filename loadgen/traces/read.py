"""Open a trace file, plain or gzip, and read it in the format that its first line shows."""

import gzip
import json
import zlib
from itertools import islice, pairwise
from pathlib import Path

from common.errors import InvalidInput
from loadgen.traces import azure, lengths, mooncake, servegen
from loadgen.traces.row import Reader, Row

CSV_FORMATS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (azure.COLUMNS, azure.read_azure),
    (servegen.COLUMNS, servegen.read_servegen),
    (lengths.COLUMNS, lengths.read_lengths),
)
FORMATS = "Mooncake or Bailian JSON lines, or a CSV of Azure, ServeGen or lengths only"


def read_trace(path: Path, limit: int | None = None) -> list[Row]:
    """The first `limit` rows, or all, in order of arrival. Raises InvalidInput naming file, line and column."""
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = text.decode("utf-8").splitlines()
    except OSError as error:
        raise InvalidInput("trace", path, f"a readable file: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise InvalidInput("trace", path, f"whole gzip data: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("trace", path, f"UTF-8 text: {error}") from error
    if not lines:
        raise InvalidInput("trace", path, "not empty")
    rows = list(islice(_reader_of(path, lines[0])(path.name, enumerate(lines, start=1)), limit))
    if not rows:
        raise InvalidInput("trace", path, "at least one row")
    times = [row.arrival_s for row in rows if row.arrival_s is not None]
    if any(later < earlier for earlier, later in pairwise(times)):
        rows.sort(key=_arrival_s)
    return rows


def _arrival_s(row: Row) -> float:
    return row.arrival_s or 0.0


def _reader_of(path: Path, first: str) -> Reader:
    if first.lstrip().startswith("{"):
        try:
            return mooncake.read_bailian if "chat_id" in json.loads(first) else mooncake.read_mooncake
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{path.name}: line 1", first, "a JSON object") from error
    columns = {cell.strip() for cell in first.split(",")}
    for needed, reader in CSV_FORMATS:
        if columns.issuperset(needed):
            return reader
    # A header that has some columns of a format lacks the others; one that has none is of no format.
    lacking = min((set(needed) - columns for needed, _ in CSV_FORMATS if columns & set(needed)), key=len, default=None)
    limit = f"a column {', '.join(sorted(lacking))}" if lacking else FORMATS
    raise InvalidInput(f"{path.name}: line 1", first, limit)
