"""What a scheduler replica exports. Every series exists before the first request."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.errors import TandemError
from common.request import FinishReason
from common.telemetry.families import TIME_BUCKETS_S, error_types


@dataclass(frozen=True, slots=True)
class SchedulerMetrics:
    """Series bound to the one model that is served."""

    live_requests: Gauge
    waiting_requests: Gauge
    finished: dict[FinishReason, Counter]  # choices
    failed: dict[str, Counter]  # requests, by reason of common/errors.py
    prompt_tokens: Counter
    cached_tokens: Counter
    generated_tokens: Counter
    drafted_tokens: Counter
    accepted_tokens: Counter
    queue_seconds: Histogram
    time_to_first_token_seconds: Histogram
    inter_token_seconds: Histogram
    request_seconds: Histogram
    lookups: Counter
    lookups_without_answer: Counter
    predicted_cached_blocks: Counter
    actual_cached_blocks: Counter
    retries: Counter
    resumes: Counter
    preemptions: Counter
    fenced_tokens: Counter
    lost_cancels: Counter
    slow_readers: Counter
    refused_connections: Counter
    unreadable_leases: Counter
    load_reports_missed: Counter
    load_reports_refused: Counter

    def count_failure(self, error: TandemError) -> None:
        self.failed[error.reason].inc()


def scheduler_metrics(registry: CollectorRegistry, model: str) -> SchedulerMetrics:
    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"tandem_{name}", text, ("model",), registry=registry).labels(model)

    def counter(name: str, text: str) -> Counter:
        return Counter(f"tandem_{name}", text, ("model",), registry=registry).labels(model)

    def seconds(name: str, text: str) -> Histogram:
        family = Histogram(f"tandem_{name}", text, ("model",), buckets=TIME_BUCKETS_S, registry=registry)
        return family.labels(model)

    finished = Counter(
        "tandem_finished_choices", "Choices that ended by themselves", ("model", "finish_reason"), registry=registry
    )
    failed = Counter(
        "tandem_failed_requests", "Requests that ended in an error", ("model", "error_type"), registry=registry
    )
    return SchedulerMetrics(
        live_requests=gauge("live_requests", "Requests of this replica"),
        waiting_requests=gauge("waiting_requests", "Requests that wait for their turn"),
        finished={reason: finished.labels(model, reason.value) for reason in FinishReason},
        failed={reason: failed.labels(model, reason) for reason in error_types()},
        prompt_tokens=counter("request_prompt_tokens", "Prompt tokens of requests that got a first token"),
        cached_tokens=counter("request_cached_tokens", "Prompt tokens whose latent was reused"),
        generated_tokens=counter("request_generated_tokens", "Tokens delivered"),
        drafted_tokens=counter("request_drafted_tokens", "Drafts that decode verified"),
        accepted_tokens=counter("request_accepted_tokens", "Drafts that were accepted"),
        queue_seconds=seconds("request_queue_seconds", "From arrival to placement"),
        time_to_first_token_seconds=seconds("time_to_first_token_seconds", "From arrival to the first token"),
        inter_token_seconds=seconds("inter_token_seconds", "Between tokens of a choice; of several at once, each"),
        request_seconds=seconds("request_seconds", "From arrival to the end"),
        lookups=counter("prefix_lookups", "Questions to the prefix index"),
        lookups_without_answer=counter("prefix_lookups_unanswered", "Of them, not answered within the budget"),
        predicted_cached_blocks=counter("predicted_cached_blocks", "Blocks that the index said were there"),
        actual_cached_blocks=counter("actual_cached_blocks", "Blocks that prefill found there"),
        retries=counter("request_retries", "Attempts repeated before a first token"),
        resumes=counter("request_resumes", "Choices resumed after their first token"),
        preemptions=counter("request_preemptions", "Choices that decode gave up to make room"),
        fenced_tokens=counter("fenced_tokens", "Tokens at positions that were already delivered, dropped"),
        lost_cancels=counter("lost_cancels", "Cancels that a worker did not answer"),
        slow_readers=counter("slow_readers", "Requests ended because the client did not read"),
        refused_connections=counter("refused_connections", "HTTP connections beyond those that may be open at once"),
        unreadable_leases=counter("unreadable_leases", "Listed records of instances that could not be read"),
        load_reports_missed=counter(
            "load_reports_missed", "Load reports that were sent and did not come, by their numbers"
        ),
        load_reports_refused=counter("load_reports_refused", "Load reports that came again, or after a later one"),
    )
