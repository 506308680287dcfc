"""The scheduler's own constants: everything that is policy and not a place."""

from dataclasses import dataclass, field

from common.config.cluster import ClusterConfig
from services.scheduler.placement import PlacementPolicy


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    max_live: int = 4096  # requests
    max_waiting: int = 1024  # requests that wait for their turn
    max_wait_s: float = 30.0  # predicted; also the longest that one really waits
    dispatch_ahead_s: float = 0.5  # queued work that a prefill instance is given in advance, in time
    dispatch_works: int = 8  # likewise in number; either is enough
    retry_after_s: float = 1.0  # least hint
    tenant_weights: dict[str, float] = field(default_factory=dict)  # absent: 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    retries_before_first_token: int = 1
    attempts_without_progress: int = 4  # of a resume that fails again before its next token
    resume_wait_s: float = 30.0  # how long a begun request waits for capacity
    pause_s: float = 0.05  # before the next attempt, doubled each time
    decode_refusals: int = 3  # instances asked to admit one piece of work


@dataclass(frozen=True, slots=True)
class MembershipPolicy:
    discovery_interval_s: float = 0.5
    health_interval_s: float = 1.0
    health_timeout_s: float = 2.0
    fence_after_s: float = 4.0  # suspect for so long: its work is resumed elsewhere
    report_fresh_s: float = 3.0  # an older load report is no report


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    name: str
    admission: AdmissionPolicy = AdmissionPolicy()
    retry: RetryPolicy = RetryPolicy()
    membership: MembershipPolicy = MembershipPolicy()
    placement: PlacementPolicy = field(default_factory=PlacementPolicy)
    explained_requests: int = 4096
    outbox_tokens: int = 4096  # not yet taken by the client; more ends the request
    admit_timeout_s: float = 5.0
    handoff_grace_s: float = 2.0  # that decode has to join after prefill was lost behind its first token
    prefill_tokens_per_s: float = 8192.0  # of an instance that does not say what it measured

    @staticmethod
    def of(name: str, config: ClusterConfig) -> "SchedulerSettings":
        return SchedulerSettings(
            name=name,
            admission=AdmissionPolicy(
                max_live=config.scheduler.max_live_requests, max_wait_s=config.scheduler.max_wait_s
            ),
            retry=RetryPolicy(attempts_without_progress=config.scheduler.max_attempts),
            placement=PlacementPolicy(block_tokens=config.block_tokens, chunk_tokens=config.prefill.chunk_tokens),
            explained_requests=config.scheduler.explained_requests,
        )
