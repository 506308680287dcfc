"""Kernel tables that the repository's own bench wrote, read as further checks of the model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import InvalidInput
from loadgen.planner.efficiency import fastest_us, kernel_us
from loadgen.planner.fit import Constants
from loadgen.planner.hardware import HARDWARE, Hardware
from loadgen.planner.kernel_fit import Residual
from loadgen.planner.kernel_points import V3, mha_prefill, mla_decode
from loadgen.planner.linear import linear_bytes
from loadgen.planner.operations import Operation, elementwise, gemm, grouped_gemm

RESULTS = Path("kernels/bench/results")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One row of a bench file: the best backend's time for one op and shape."""

    file: str
    machine: str
    op: str
    backend: str
    shape: Mapping[str, int | str]
    us: float


@dataclass(frozen=True, slots=True)
class MeasuredCheck:
    """What the tables say: rows the model has, as residuals, and ops that it does not model."""

    residuals: tuple[Residual, ...]
    not_modelled: tuple[str, ...]


def read_results(folder: Path = RESULTS) -> list[MeasuredKernel]:
    """Best backend of every (file, op, shape) under `folder`; empty where there is no such folder.

    A file is an object with `machine` (an object), `date`, `versions` and `results`, a list of objects with `op`,
    `backend`, `shape` (name to integer, or to a word that tells how the shape was filled) and `us`.

    Raises:
        InvalidInput: a file that is no such object, naming file, field and value.
    """
    best: dict[tuple[str, str, tuple[tuple[str, int | str], ...]], MeasuredKernel] = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        for row in _rows(path):
            key = (row.file, row.op, tuple(sorted(row.shape.items())))
            if key not in best or row.us < best[key].us:
                best[key] = row
    return list(best.values())


def check_results(rows: list[MeasuredKernel], constants: Constants, gpu: Hardware | None = None) -> MeasuredCheck:
    """Every row the model covers beside its prediction, all of them left out of every fit."""
    stack = constants.stack("measured-2026")
    found, missing = [], set()
    for row in rows:
        operation = _operation(row)
        if operation is None:
            missing.add(row.op)
            continue
        card = gpu or _card(row.machine)
        us = fastest_us(operation, card, stack.curves[operation.kernel])
        if operation.name.startswith("mha"):
            us = kernel_us(operation, card, constants.curves["fa3-prefill"])
        found.append(Residual(row.backend, f"{row.op} {_shape_text(row.shape)}", row.machine, row.us, us, False))
    return MeasuredCheck(tuple(found), tuple(sorted(missing)))


def _rows(path: Path) -> list[MeasuredKernel]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path.name}", path, f"readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path.name}", type(content).__name__, "a JSON object")
    machine = content.get("machine")
    if not isinstance(machine, dict):
        raise InvalidInput(f"{path.name}.machine", machine, "an object")
    results = content.get("results")
    if not isinstance(results, list):
        raise InvalidInput(f"{path.name}.results", results, "a list")
    name = str(next((machine[key] for key in ("gpu", "device", "name") if key in machine), "unknown"))
    return [_row(path, name, number, value) for number, value in enumerate(results)]


def _row(path: Path, machine: str, number: int, value: object) -> MeasuredKernel:
    where = f"{path.name}.results[{number}]"
    if not isinstance(value, dict):
        raise InvalidInput(where, value, "an object")
    for field, kind in (("op", str), ("backend", str), ("shape", dict)):
        if not isinstance(value.get(field), kind):
            raise InvalidInput(f"{where}.{field}", value.get(field), f"a {kind.__name__}")
    shape = {str(key).lower(): size for key, size in value["shape"].items()}
    for key, size in shape.items():
        if isinstance(size, bool) or not isinstance(size, int | str) or (isinstance(size, int) and size < 0):
            raise InvalidInput(f"{where}.shape.{key}", size, "an integer of at least 0, or a word")
    us = value.get("us")
    if isinstance(us, bool) or not isinstance(us, int | float) or us <= 0:
        raise InvalidInput(f"{where}.us", us, "a positive number of microseconds")
    return MeasuredKernel(path.name, machine, value["op"], value["backend"], shape, float(us))


def _card(machine: str) -> Hardware:
    lowered = machine.lower()
    return next((card for name, card in HARDWARE.items() if name in lowered), HARDWARE["h200"])


def _size(shape: Mapping[str, int | str], *names: str) -> int | None:
    return next((size for name in names if isinstance(size := shape.get(name), int)), None)


def _gemm(shape: Mapping[str, int | str]) -> Operation | None:
    m, n, k = _size(shape, "m", "rows", "tokens"), _size(shape, "n", "out"), _size(shape, "k", "depth")
    return None if not (m and n and k) else gemm(f"{n}x{k}", 0, m, n, k, linear_bytes(V3, n, k))


def _grouped(shape: Mapping[str, int | str]) -> Operation | None:
    groups = _size(shape, "groups", "experts", "g", "e")
    m, n, k = _size(shape, "m", "rows", "rows_per_expert"), _size(shape, "n", "out"), _size(shape, "k", "depth")
    if not (groups and m and n and k):
        return None
    return grouped_gemm(f"{groups} x {m}", 0, groups, m, n, k, linear_bytes(V3, n, k), routed=False)


def _mla_decode(shape: Mapping[str, int | str]) -> Operation | None:
    requests, query = _size(shape, "requests", "batch", "b"), _size(shape, "query", "q") or 1
    cached, heads = _size(shape, "cached", "kv", "context", "kv_len"), _size(shape, "heads", "h") or V3.heads
    if not (requests and cached) or V3.heads % heads:
        return None
    return mla_decode(heads, requests, query, cached)


def _mha_prefill(shape: Mapping[str, int | str]) -> Operation | None:
    tokens, heads = _size(shape, "tokens", "length", "s"), _size(shape, "heads", "h") or V3.heads
    if not tokens or V3.heads % heads:
        return None
    made = mha_prefill(heads, _size(shape, "prompts", "batch") or 1, tokens)
    return Operation(
        f"mha {made.name}", 0, made.kernel, "bf16", made.flops, made.bytes, made.padded_flops, length=made.length
    )


def _silu(shape: Mapping[str, int | str]) -> Operation | None:
    rows, width = _size(shape, "rows", "m", "tokens"), _size(shape, "inner", "n", "width")
    rows = rows * (_size(shape, "groups", "experts") or 1) if rows else None
    return None if not (rows and width) else elementwise("silu, quantise", 0, rows * width * 5)


# Bench op names by what they contain, most particular first.
_MODELS: tuple[tuple[str, Callable[[Mapping[str, int | str]], Operation | None]], ...] = (
    ("layer", lambda _: None),  # of many kernels
    ("grouped", _grouped),
    ("mla_decode", _mla_decode),
    ("prefill", _mha_prefill),
    ("silu", _silu),
    ("gemm", _gemm),
    ("linear", _gemm),
)


def _operation(row: MeasuredKernel) -> Operation | None:
    op = row.op.lower().replace(" ", "_")
    build = next((model for part, model in _MODELS if part in op), None)
    return build(row.shape) if build else None


def _shape_text(shape: Mapping[str, int | str]) -> str:
    return " ".join(f"{key} {value}" for key, value in shape.items())
