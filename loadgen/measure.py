"""Latencies of requests and of a run. Pure functions of records.

TTFT    first token, after the scheduled moment (what a user sees) and after the send (what the server did)
ITL     time between tokens: a message of k tokens that comes g seconds after the one before is k gaps of g / k
TPOT    one request's mean ITL: (last message - first message) / tokens that came after the first message
E2E     last message, after the scheduled moment
Tokens of the first message are nobody's gap: they came at once, and counting them would flatter a server that drafts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadgen.record import Record
from loadgen.sender import SenderDone

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one request that ended well; None where it had too few tokens to say."""

    ttft_s: float
    ttft_from_send_s: float
    e2e_s: float
    tpot_s: float | None
    itl_s: tuple[float, ...]  # one entry a token
    gaps_s: tuple[float, ...]  # one entry a message


def latency(record: Record) -> Latency:
    """Latencies of `record`, to which at least one token must have come."""
    first_s, last_s = record.arrivals_s[0], record.arrivals_s[-1]
    gaps = [later - earlier for earlier, later in pairwise(record.arrivals_s)]
    itl = [gap / tokens for gap, tokens in zip(gaps, record.arrival_tokens[1:], strict=True) for _ in range(tokens)]
    return Latency(
        ttft_s=first_s - record.scheduled_s,
        ttft_from_send_s=first_s - record.sent_s,
        e2e_s=last_s - record.scheduled_s,
        tpot_s=(last_s - first_s) / len(itl) if itl else None,
        itl_s=tuple(itl),
        gaps_s=tuple(gaps),
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds. `percentiles_ms` follows PERCENTILES."""

    count: int
    mean_ms: float
    percentiles_ms: tuple[float, ...]
    max_ms: float


def distribution(values_s: Sequence[float]) -> Distribution | None:
    """None of nothing: a mean of no values is not 0."""
    if not values_s:
        return None
    values_ms = np.asarray(values_s) * 1000.0
    percentiles = tuple(float(p) for p in np.percentile(values_ms, PERCENTILES))
    return Distribution(len(values_s), float(values_ms.mean()), percentiles, float(values_ms.max()))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a good answer is; None does not ask."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met(self, one: Latency) -> bool:
        limits = ((self.ttft_ms, one.ttft_s), (self.tpot_ms, one.tpot_s), (self.e2e_ms, one.e2e_s))
        return all(limit is None or value is None or value * 1000.0 <= limit for limit, value in limits)

    @property
    def any(self) -> bool:
        return self != Bounds()


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers. Rates are per second of the span from the first arrival to the last end."""

    requests: int
    succeeded: int
    errors: dict[str, int]  # by reason
    examples: dict[str, str]  # the first message of each reason
    span_s: float
    scheduled_rate_per_s: float
    sent_rate_per_s: float
    completed_rate_per_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    completion_tokens_per_s: float
    draft_acceptance: float | None
    ttft: Distribution | None
    ttft_from_send: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    message_gap: Distribution | None
    e2e: Distribution | None
    send_lag: Distribution | None
    goodput_share: float | None  # of all requests, those that ended well within the bounds
    goodput_per_s: float | None


def summarize(records: Sequence[Record], bounds: Bounds, warmup_s: float = 0.0) -> Summary:
    """Statistics of the requests scheduled at or after `warmup_s`."""
    counted = [r for r in records if r.scheduled_s >= warmup_s]
    good = [r for r in counted if not r.error]
    latencies = [latency(r) for r in good if r.arrivals_s]
    arrivals = sorted(r.scheduled_s for r in counted)
    sends = sorted(r.sent_s for r in counted)
    span_s = max((r.ended_s for r in counted), default=0.0) - (arrivals[0] if arrivals else 0.0)
    within = sum(bounds.met(one) for one in latencies)
    drafted = sum(r.drafted_tokens for r in good)
    completion_tokens = sum(r.completion_tokens for r in good)
    return Summary(
        requests=len(counted),
        succeeded=len(good),
        errors=dict(Counter(r.error for r in counted if r.error).most_common()),
        examples={r.error: r.message for r in reversed(counted) if r.error},
        span_s=span_s,
        scheduled_rate_per_s=_rate(arrivals),
        sent_rate_per_s=_rate(sends),
        completed_rate_per_s=len(good) / span_s if span_s > 0 else 0.0,
        prompt_tokens=sum(r.prompt_tokens for r in good),
        cached_tokens=sum(r.cached_tokens for r in good),
        completion_tokens=completion_tokens,
        completion_tokens_per_s=completion_tokens / span_s if span_s > 0 else 0.0,
        draft_acceptance=sum(r.accepted_tokens for r in good) / drafted if drafted else None,
        ttft=distribution([one.ttft_s for one in latencies]),
        ttft_from_send=distribution([one.ttft_from_send_s for one in latencies]),
        tpot=distribution([one.tpot_s for one in latencies if one.tpot_s is not None]),
        itl=distribution([gap for one in latencies for gap in one.itl_s]),
        message_gap=distribution([gap for one in latencies for gap in one.gaps_s]),
        e2e=distribution([one.e2e_s for one in latencies]),
        send_lag=distribution([r.lag_s for r in counted]),
        goodput_share=within / len(counted) if bounds.any and counted else None,
        goodput_per_s=within / span_s if bounds.any and span_s > 0 else None,
    )


def _rate(moments_s: Sequence[float]) -> float:
    """Events per second between the first and the last of sorted moments."""
    if len(moments_s) < 2 or moments_s[-1] <= moments_s[0]:
        return 0.0
    return (len(moments_s) - 1) / (moments_s[-1] - moments_s[0])


@dataclass(frozen=True, slots=True)
class Saturation:
    """How far the generator was from its own schedule. When `saturated`, the latencies say nothing of the server."""

    send_lag_p99_ms: float
    loop_lag_p99_ms: float
    cpu_share_max: float
    limit_ms: float

    @property
    def saturated(self) -> bool:
        return self.send_lag_p99_ms > self.limit_ms or self.loop_lag_p99_ms > self.limit_ms


def saturation(records: Sequence[Record], senders: Sequence[SenderDone], limit_ms: float) -> Saturation:
    """Judged by the worst sender: one that falls behind spoils the tail of all."""
    loop_lags = [np.percentile(sender.loop_lags_s, 99.0) for sender in senders if sender.loop_lags_s]
    return Saturation(
        send_lag_p99_ms=float(np.percentile([r.lag_s for r in records], 99.0)) * 1000.0 if records else 0.0,
        loop_lag_p99_ms=float(max(loop_lags, default=0.0)) * 1000.0,
        cpu_share_max=max((sender.cpu_share for sender in senders), default=0.0),
        limit_ms=limit_ms,
    )
