"""What a prefill or decode instance exports. Every series exists before the first request."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.errors import TandemError
from common.telemetry.families import LABELS, TIME_BUCKETS_S, error_types, instance_labels

BLOCK_STATES = ("free", "owned", "cached")


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Series of one instance, already bound to its labels."""

    running: Gauge
    queued: Gauge
    queued_tokens: Gauge
    blocks: dict[str, Gauge]  # by state; they sum to the pool
    leases: Gauge
    steps: Counter
    step_seconds: Gauge
    queue_seconds: Histogram
    prefill_seconds: Histogram
    exposed_transfer_seconds: Histogram
    prompt_tokens: Counter
    cached_tokens: Counter
    generated_tokens: Counter
    drafted_tokens: Counter
    accepted_tokens: Counter
    preemptions: Counter
    transferred_bytes: Counter
    unreadable_leases: Counter
    failures: dict[str, Counter]  # by reason of common/errors.py

    def show(self, running: int, queued: int, queued_tokens: int, step_s: float) -> None:
        """The load as it is now."""
        self.running.set(running)
        self.queued.set(queued)
        self.queued_tokens.set(queued_tokens)
        self.step_seconds.set(step_s)

    def show_blocks(self, *, free: int, owned: int, cached: int) -> None:
        for state, count in zip(BLOCK_STATES, (free, owned, cached), strict=True):
            self.blocks[state].set(count)

    def count_failure(self, error: TandemError) -> None:
        self.failures[error.reason].inc()


def worker_metrics(registry: CollectorRegistry, *, model: str, role: str, dp_rank: int) -> WorkerMetrics:
    """Register the families and bind them to this instance's labels."""
    values = tuple(instance_labels(model=model, role=role, dp_rank=dp_rank).values())

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(name, text, LABELS, registry=registry).labels(*values)

    def counter(name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=registry).labels(*values)

    def seconds(name: str, text: str) -> Histogram:
        return Histogram(name, text, LABELS, buckets=TIME_BUCKETS_S, registry=registry).labels(*values)

    blocks = Gauge("tandem_kv_blocks", "Blocks of the KV pool by state", (*LABELS, "state"), registry=registry)
    failures = Counter(
        "tandem_work_failures", "Work that ended in an error", (*LABELS, "error_type"), registry=registry
    )
    return WorkerMetrics(
        running=gauge("tandem_running", "Work under way"),
        queued=gauge("tandem_queued", "Work that waits"),
        queued_tokens=gauge("tandem_queued_tokens", "Tokens of work that waits or is not yet computed"),
        blocks={state: blocks.labels(*values, state) for state in BLOCK_STATES},
        leases=gauge("tandem_read_leases", "Transfers whose blocks are pinned"),
        steps=counter("tandem_steps", "Engine steps"),
        step_seconds=gauge("tandem_step_seconds", "Mean wall time of the latest engine steps"),
        queue_seconds=seconds("tandem_queue_seconds", "From arrival at the instance to its start"),
        prefill_seconds=seconds("tandem_prefill_seconds", "From start to first token"),
        exposed_transfer_seconds=seconds("tandem_exposed_transfer_seconds", "From handoff to the last block's landing"),
        prompt_tokens=counter("tandem_prompt_tokens", "Prompt tokens of started work"),
        cached_tokens=counter("tandem_cached_tokens", "Prompt tokens whose latent was reused"),
        generated_tokens=counter("tandem_generated_tokens", "Tokens generated"),
        drafted_tokens=counter("tandem_drafted_tokens", "Draft tokens verified"),
        accepted_tokens=counter("tandem_accepted_tokens", "Draft tokens accepted"),
        preemptions=counter("tandem_preemptions", "Work that gave its blocks back"),
        transferred_bytes=counter("tandem_transferred_bytes", "Latent read from prefill"),
        unreadable_leases=counter("tandem_unreadable_leases", "Listed records of instances that could not be read"),
        failures={reason: failures.labels(*values, reason) for reason in error_types()},
    )
