"""What a run sends and when: a schedule of requests, serialised before the clock starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from common.rpc.timed_generate import serialize_request
from loadgen.prompts import SharedPrefix, Vocabulary, prompt_ids, scaled_row
from loadgen.traces.row import Row

NO_PREFIX = SharedPrefix()


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the schedule. `payload` is the serialised call."""

    index: int
    at_s: float  # after the start of the run
    prompt_tokens: int
    output_tokens: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """What the server can take, as it says itself."""

    model: str
    vocab_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`too_long` rows do not fit the server's context even scaled: left out, and reported."""

    requests: tuple[Planned, ...]
    too_long: int


@dataclass(frozen=True, slots=True)
class Shaping:
    """How trace rows become requests."""

    scale: Fraction = Fraction(1)
    seed: int = 0
    shared: SharedPrefix = NO_PREFIX
    temperature: float | None = None
    tenant: str = ""


def synthetic_rows(count: int, prompt_tokens: int, output_tokens: int) -> list[Row]:
    return [Row(prompt_tokens=prompt_tokens, output_tokens=output_tokens)] * count


def schedule(rows: Sequence[Row], arrivals_s: Sequence[float], target: Target, shaping: Shaping) -> Schedule:
    """One request a row, at its arrival; output lengths are exact, since the end of sequence is ignored."""
    vocabulary = Vocabulary.of(target.vocab_tokens)
    planned, too_long = [], 0
    for index, (row, at_s) in enumerate(zip(rows, arrivals_s, strict=True)):
        scaled = scaled_row(row, shaping.scale)
        if scaled.prompt_tokens + scaled.output_tokens > target.context_tokens:
            too_long += 1
            continue
        request = GenerateRequest(
            token_ids=tuple(prompt_ids(scaled, index, shaping.seed, vocabulary, shaping.shared)),
            model=target.model,
            sampling=SamplingOptions(temperature=shaping.temperature, seed=shaping.seed + index),
            stopping=Stopping(max_tokens=scaled.output_tokens, ignore_eos=True),
            tenant=shaping.tenant,
        )
        payload = serialize_request(request)
        planned.append(Planned(index, at_s, scaled.prompt_tokens, scaled.output_tokens, payload))
    return Schedule(tuple(planned), too_long)
