"""What a deployment must serve: lengths, their spread, and how much of a prompt is cached already."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf, log
from pathlib import Path

import numpy as np

from common.errors import InvalidInput
from loadgen.traces.read import read_trace
from loadgen.traces.row import Row


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens.

    Attributes:
        name, source: what it is and where the numbers come from.
        input_mean, input_p90, input_p99, input_cv: prompts; cv is standard deviation over mean.
        output_mean, output_p90: answers.
        context_mean: mean cache length of a request while it decodes, each weighted by its own output.
        hit_rate: share of prompt tokens found in a prefix cache.
    """

    name: str
    source: str
    input_mean: float
    input_p90: float
    input_p99: float
    input_cv: float
    output_mean: float
    output_p90: float
    context_mean: float
    hit_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate < 1:
            raise InvalidInput("hit_rate", self.hit_rate, "at least 0 and below 1: a prompt's last token is computed")
        for field in ("input_mean", "output_mean"):
            if not 0 < getattr(self, field) < inf:
                raise InvalidInput(f"workload.{field}", getattr(self, field), "more than 0 tokens, and finite")

    @property
    def new_mean(self) -> float:
        """Prompt tokens that prefill computes."""
        return self.input_mean * (1 - self.hit_rate)

    def with_hit_rate(self, hit_rate: float) -> "Workload":
        return replace(self, hit_rate=hit_rate)

    def stretched(self, factor: float) -> "Workload":
        """The same with every prompt `factor` times as long."""
        grown = self.input_mean * (factor - 1)
        return replace(
            self,
            input_mean=self.input_mean * factor,
            input_p90=self.input_p90 * factor,
            input_p99=self.input_p99 * factor,
            context_mean=self.context_mean + grown,
        )


# Statistics of public traces, as `from_rows` makes them; the traces themselves are not part of this repository.
_CODE = Workload(
    name="code",
    source="Azure LLM inference trace 2023, code (CC-BY): 8,819 requests, no prefixes recorded",
    input_mean=2047.8,
    input_p90=5187.6,
    input_p99=7436.0,
    input_cv=0.964,
    output_mean=27.9,
    output_p90=55.0,
    context_mean=2130.9,
)
PRESETS: dict[str, Workload] = {
    "chat": Workload(
        name="chat",
        source="Mooncake FAST'25 conversation trace (Apache-2.0): 12,031 requests; 37 % of prompt tokens would hit one "
        "endless cache, 31 % is what a load-aware router over four workers keeps",
        input_mean=12035.1,
        input_p90=27367.0,
        input_p99=85400.4,
        input_cv=1.313,
        output_mean=342.6,
        output_p90=597.0,
        context_mean=13125.9,
        hit_rate=0.31,
    ),
    "code": _CODE,
    "long-context-code": replace(
        _CODE.stretched(8).with_hit_rate(0.5),
        name="long-context-code",
        source="the code trace with every prompt eight times as long and half of it cached: both factors are assumed, "
        "for tools that send a repository again with each question",
    ),
    "reasoning": Workload(
        name="reasoning",
        source="sampled from ServeGen's deepseek-r1 tables (Apache-2.0): 6,519 requests",
        input_mean=1468.3,
        input_p90=2106.2,
        input_p99=22967.6,
        input_cv=2.643,
        output_mean=2508.0,
        output_p90=6749.2,
        context_mean=5134.6,
    ),
}


def workload(name_or_path: str) -> Workload:
    """A preset by name, a `.json` object of mean and percentile lengths, or the statistics of a trace file."""
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".json" and path.exists():
        return _from_lengths(path)
    if not path.exists():
        raise InvalidInput("workload", name_or_path, f"a preset ({', '.join(PRESETS)}) or an existing file")
    return from_rows(path.name.split(".")[0], str(path.name), read_trace(path))


def _from_lengths(path: Path) -> Workload:
    """`input_mean` and `output_mean` are required; p90, p99 and cv default to those of exponential lengths."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput("workload", path, f"readable JSON ({error})") from error
    if not isinstance(given, dict):
        raise InvalidInput("workload", path, "a JSON object")
    known = [field.name for field in fields(Workload) if field.name not in ("name", "source")]
    for key, value in given.items():
        if key not in known:
            raise InvalidInput(f"workload.{key}", value, f"one of {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise InvalidInput(f"workload.{key}", value, "a number of at least 0")
    for key in ("input_mean", "output_mean"):
        if key not in given:
            raise InvalidInput(f"workload.{key}", "absent", "required")
    mean_in, mean_out = float(given["input_mean"]), float(given["output_mean"])
    return Workload(
        name=path.stem,
        source=path.name,
        input_mean=mean_in,
        input_p90=float(given.get("input_p90", mean_in * log(10))),
        input_p99=float(given.get("input_p99", mean_in * log(100))),
        input_cv=float(given.get("input_cv", 1.0)),
        output_mean=mean_out,
        output_p90=float(given.get("output_p90", mean_out * log(10))),
        context_mean=float(given.get("context_mean", mean_in + mean_out / 2)),
        hit_rate=float(given.get("hit_rate", 0.0)),
    )


def from_rows(name: str, source: str, rows: Sequence[Row]) -> Workload:
    """Statistics of a trace; its hit rate is that of one endless cache, an upper bound for any real one."""
    tokens_in = np.array([row.prompt_tokens for row in rows], dtype=np.float64)
    tokens_out = np.array([row.output_tokens for row in rows], dtype=np.float64)
    if tokens_out.sum() == 0:
        raise InvalidInput("workload", source, "a trace with output tokens")
    return Workload(
        name=name,
        source=source,
        input_mean=float(tokens_in.mean()),
        input_p90=float(np.percentile(tokens_in, 90)),
        input_p99=float(np.percentile(tokens_in, 99)),
        input_cv=float(tokens_in.std() / tokens_in.mean()),
        output_mean=float(tokens_out.mean()),
        output_p90=float(np.percentile(tokens_out, 90)),
        context_mean=float(np.average(tokens_in + tokens_out / 2, weights=tokens_out)),
        hit_rate=sum(hit_tokens(rows)) / float(tokens_in.sum()),
    )


def hit_tokens(rows: Sequence[Row]) -> list[int]:
    """Prompt tokens of each request in leading blocks seen before; at most all but the last, which is computed."""
    seen: set[int] = set()
    hits = []
    for row in rows:
        held = next((i for i, block in enumerate(row.hash_ids) if block not in seen), len(row.hash_ids))
        seen.update(row.hash_ids)
        hits.append(min(held * row.hash_block_tokens, row.prompt_tokens - 1))
    return hits
