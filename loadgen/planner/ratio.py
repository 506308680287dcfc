"""How to split GPUs between prefill and decode for a workload, and what that serves at what cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from common.errors import InvalidInput
from loadgen.planner.deployment import DecodePlan, DecodePoint, decode_point
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import Z90, Parallelism
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.prefill_pool import PASS_TOKENS, PrefillPoint, idle_ttft_p90_s, prefill_point
from loadgen.planner.stacks import Stack
from loadgen.planner.workload import Workload

# Decode slots that are filled on average; the rest is room for arrivals to be uneven. Assumed.
DECODE_LOAD = 0.9
PREFILL_EPS = (8, 16, 32)
DECODE_EPS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128)
TPS = (1, 2, 4, 8)
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
# Copies of hot experts tried per EP: the first that divides. Rebalanced with copies, the hottest rank stays 11 %
# above the mean (TensorRT-LLM tech blog 4, EP32, 288 slots).
COPIES = (32, 64, 80, 128)
BALANCED_BY_COPIES = 1.11
# Every split of every candidate is weighed against all draws; beyond this a fleet is copies of a smaller one.
MOST_GPUS = 4096
_DRAWS = 400


@dataclass(frozen=True, slots=True)
class Fleet:
    """What there is to divide, and the bounds to keep: p90 first token in `ttft_s`, mean token in `itl_s`."""

    model: ModelShape
    gpu: Hardware
    stack: Stack
    ttft_s: float
    itl_s: float
    acceptance: float = 0.6
    draft_tokens: int = 1

    def __post_init__(self) -> None:
        for field, value in (("ttft_s", self.ttft_s), ("itl_s", self.itl_s)):
            if not 0 < value < inf:
                raise InvalidInput(field, value, "more than 0, and finite")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A split of the GPUs.

    Attributes:
        prefill, decode: one group of each.
        prefill_groups, decode_groups: how many.
        requests_per_s: what both pools carry; `interval` is 90 %.
        bound_by: the pool that is full.
        output_tokens_per_s: all requests together.
        cost_per_million_output: dollars, with every GPU paid for.
        idle_gpus: left over.
        confidence: share of draws of the two pools' errors in which no other split would carry more.
        runner_up: what is best most often in the other draws; empty where there are none.
    """

    prefill: PrefillPoint
    decode: DecodePoint
    prefill_groups: int
    decode_groups: int
    requests_per_s: float
    interval: tuple[float, float]
    bound_by: str
    output_tokens_per_s: float
    cost_per_million_output: float
    idle_gpus: int
    confidence: float
    runner_up: str

    @property
    def prefill_gpus(self) -> int:
        return self.prefill_groups * self.prefill.ep

    @property
    def decode_gpus(self) -> int:
        return self.decode_groups * self.decode.ep

    @property
    def ratio(self) -> float:
        """Prefill GPUs for each decode GPU."""
        return self.prefill_gpus / self.decode_gpus


@dataclass(frozen=True, slots=True)
class _Split:
    prefill: PrefillPoint
    decode: DecodePoint
    prefill_groups: int
    decode_groups: int
    prefill_rate: float
    decode_rate: float

    @property
    def label(self) -> str:
        return (
            f"{self.prefill_groups} x EP{self.prefill.ep} prefill, {self.decode_groups} x EP{self.decode.ep} "
            f"TP{self.decode.tp} decode"
        )


def recommend(load: Workload, fleet: Fleet, *, gpus: int) -> Recommendation:
    """The split of `gpus` that carries most requests inside the fleet's bounds.

    Raises:
        InvalidInput: too few or too many GPUs, or a bound that no configuration meets, with the nearest it came.
    """
    if gpus > MOST_GPUS:
        raise InvalidInput("gpus", gpus, f"at most {MOST_GPUS:,}; a larger fleet is copies of a smaller one")
    smallest = min(PREFILL_EPS) + min(DECODE_EPS)
    if gpus < smallest:
        raise InvalidInput("gpus", gpus, f"at least {smallest}: one EP{min(PREFILL_EPS)} prefill and one decode group")
    prefills, decodes = _prefill_points(load, fleet, gpus), _decode_points(load, fleet, gpus)
    splits = [s for p in prefills for d in decodes for s in _splits(p, d, gpus, load)]
    if not splits:
        raise InvalidInput("gpus", gpus, "room for one prefill and one decode group that meet both bounds")
    rng = np.random.default_rng(0)
    sigma_p = max(s.prefill.step.sigma_us / s.prefill.step.total_us for s in splits)
    sigma_d = max(s.decode.step.sigma_us / s.decode.step.total_us for s in splits)
    # One draw per pool kind: candidates share curves, so they err together.
    draws = np.exp(rng.normal(0.0, (sigma_p, sigma_d), size=(_DRAWS, 2)))
    rates = np.array([(s.prefill_rate, s.decode_rate) for s in splits])
    carried = np.minimum(rates[None, :, 0] * draws[:, :1], rates[None, :, 1] * draws[:, 1:])
    best = int(np.argmax(rates.min(axis=1)))
    winners = Counter(splits[i].label for i in carried.argmax(axis=1).tolist())
    chosen = splits[best]
    low, high = np.percentile(carried[:, best], [5, 95])
    rate = float(rates[best].min())
    others = [label for label, _ in winners.most_common() if label != chosen.label]
    used = chosen.prefill_groups * chosen.prefill.ep + chosen.decode_groups * chosen.decode.ep
    out_per_s = rate * load.output_mean
    return Recommendation(
        chosen.prefill,
        chosen.decode,
        chosen.prefill_groups,
        chosen.decode_groups,
        rate,
        (float(low), float(high)),
        "prefill" if chosen.prefill_rate < chosen.decode_rate else "decode",
        out_per_s,
        gpus * fleet.gpu.gpu_hour_usd.value / 3600 / out_per_s * 1e6,
        gpus - used,
        winners[chosen.label] / _DRAWS,
        others[0] if others else "",
    )


def smallest_fleet(load: Workload, fleet: Fleet, *, requests_per_s: float, sure: bool = True) -> int:
    """Fewest GPUs that carry `requests_per_s` inside both bounds.

    With `sure`, they still do when both pools are as slow as their 90 % intervals allow.

    Raises:
        InvalidInput: a rate that is not positive or needs more than `MOST_GPUS`, or a bound that nothing meets.
    """
    if not 0 < requests_per_s < inf:
        raise InvalidInput("requests_per_s", requests_per_s, "more than 0, and finite")
    prefills, decodes = _prefill_points(load, fleet, MOST_GPUS), _decode_points(load, fleet, MOST_GPUS)

    def gpus(per_group: float, group: int, relative: float) -> int:
        safe = per_group / (1 + Z90 * relative) if sure else per_group
        return ceil(requests_per_s / safe) * group

    prefilling = min(gpus(p.requests_per_s, p.ep, p.step.sigma_us / p.step.total_us) for p in prefills)
    decoding = min(gpus(_decode_requests_per_s(d, load), d.ep, d.step.sigma_us / d.step.total_us) for d in decodes)
    if prefilling + decoding > MOST_GPUS:
        raise InvalidInput("requests_per_s", requests_per_s, f"what {MOST_GPUS:,} GPUs carry, the most that is planned")
    return prefilling + decoding


def balanced_cut(model: ModelShape, ep: int, tp: int) -> Parallelism | None:
    """EP with enough copies of hot experts to divide evenly; None when no number of copies tried does."""
    copies = next((c for c in COPIES if (model.experts + c) % ep == 0), None)
    if copies is None:
        return None
    return Parallelism(ep, tp, copies, BALANCED_BY_COPIES if ep > 1 else 1.0)


def _prefill_points(load: Workload, fleet: Fleet, gpus: int) -> list[PrefillPoint]:
    """For each EP the point with most requests a GPU."""
    best: dict[int, PrefillPoint] = {}
    refusals: list[InvalidInput] = []
    for point in _prefill_candidates(load, fleet, gpus, fleet.ttft_s, refusals):
        if point.ep not in best or point.gpu_requests_per_s > best[point.ep].gpu_requests_per_s:
            best[point.ep] = point
    if not best:
        idle = [
            idle_ttft_p90_s(load, point.pass_tokens, point.step.total_us / 1e6)
            for point in _prefill_candidates(load, fleet, gpus, inf, [])
        ]
        nearest = f"the fastest that fits needs {min(idle):.3g} s when idle" if idle else f"nothing fits: {refusals[0]}"
        limit = f"a bound that some prefill group of {gpus} GPUs meets; {nearest}"
        raise InvalidInput("ttft_s", fleet.ttft_s, limit)
    return list(best.values())


def _prefill_candidates(
    load: Workload, fleet: Fleet, gpus: int, ttft_s: float, refusals: list[InvalidInput]
) -> Iterator[PrefillPoint]:
    """Every group that leaves room for decode and meets `ttft_s`; why others cannot exist goes to `refusals`."""
    for ep in PREFILL_EPS:
        for tp in TPS:
            cut = balanced_cut(fleet.model, ep, tp)
            if cut is None or ep >= gpus or ep % tp:
                continue
            for tokens in PASS_TOKENS:
                try:
                    point = prefill_point(
                        fleet.model, fleet.gpu, fleet.stack, cut, load, pass_tokens=tokens, ttft_s=ttft_s
                    )
                except InvalidInput as error:
                    refusals.append(error)
                    continue
                if point is not None:
                    yield point


def _decode_points(load: Workload, fleet: Fleet, gpus: int) -> list[DecodePoint]:
    """For each EP the point with most tokens a GPU among those fast enough."""
    best: dict[int, DecodePoint] = {}
    fastest = 0.0
    for ep in DECODE_EPS:
        cut = balanced_cut(fleet.model, ep, 1)
        if cut is None or ep >= gpus:
            continue
        plan = DecodePlan(
            fleet.model,
            fleet.gpu,
            fleet.stack,
            cached_tokens=load.context_mean,
            draft_tokens=fleet.draft_tokens if fleet.model.mtp_layers else 0,
            acceptance=fleet.acceptance,
            redundant_experts=cut.redundant_experts,
            imbalance=cut.imbalance,
        )
        for tp in TPS:
            for point in _batches(plan, ep, tp):
                fastest = max(fastest, point.output_tokens_per_s)
                if point.output_tokens_per_s * fleet.itl_s < 1:
                    break  # a larger batch is never faster
                if ep not in best or point.gpu_tokens_per_s > best[ep].gpu_tokens_per_s:
                    best[ep] = point
    if not best:
        nearest = f"the fastest that fits makes a token in {1e3 / fastest:.1f} ms" if fastest else "nothing fits"
        raise InvalidInput("itl_s", fleet.itl_s, f"a bound that some decode group of {gpus} GPUs meets; {nearest}")
    return list(best.values())


def _batches(plan: DecodePlan, ep: int, tp: int) -> Iterator[DecodePoint]:
    """Ever larger batches until one does not fit, or at once nothing where the cut cannot exist."""
    for batch in BATCHES:
        try:
            yield decode_point(plan, ep=ep, tp=tp, batch=batch)
        except InvalidInput:
            return


def _decode_requests_per_s(decode: DecodePoint, load: Workload) -> float:
    """Requests that one decode group finishes."""
    return decode.gpu_tokens_per_s * decode.ep * DECODE_LOAD / load.output_mean


def _splits(prefill: PrefillPoint, decode: DecodePoint, gpus: int, load: Workload) -> Sequence[_Split]:
    """Every number of prefill groups that leaves room for a decode group."""
    found = []
    per_group = _decode_requests_per_s(decode, load)
    for groups in range(1, (gpus - decode.ep) // prefill.ep + 1):
        decoding = (gpus - groups * prefill.ep) // decode.ep
        found.append(_Split(prefill, decode, groups, decoding, groups * prefill.requests_per_s, decoding * per_group))
    return found
