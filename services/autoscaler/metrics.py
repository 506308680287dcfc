"""What the autoscaler exports. Every series exists before the first look."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from common.config.place import ROLES, Role
from common.errors import TandemError
from common.telemetry.families import error_types

_DECISIONS = ("SetGroups", "HoldGroup", "Keep")


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    groups: Gauge
    ready_groups: Gauge
    needed_groups: Gauge
    predicted_seconds: Gauge
    use: Gauge
    draining: Gauge
    decisions: dict[str, Counter]  # by kind


@dataclass(frozen=True, slots=True)
class AutoscalerMetrics:
    leads: Gauge
    schedulers: Gauge
    picture_age_seconds: Gauge
    failures: dict[str, Counter]  # by reason of the error
    pools: dict[Role, PoolMetrics]

    def count_failure(self, error: TandemError) -> None:
        self.failures[error.reason].inc()


def autoscaler_metrics(registry: CollectorRegistry, model: str) -> AutoscalerMetrics:
    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tandem_autoscaler_{name}", text, ("model", *labels), registry=registry)

    groups = gauge("groups", "Groups that Kubernetes is asked for", "role")
    ready = gauge("ready_groups", "Groups that Kubernetes calls ready", "role")
    needed = gauge("needed_groups", "Groups that the load needs, not rounded", "role")
    predicted = gauge("predicted_seconds", "Prefill: wait for a first token; decode: one step", "role")
    use = gauge("use", "Prefill: share of time with work; decode: of seats or blocks", "role")
    draining = gauge("draining", "Whether the last group is being emptied", "role")
    decisions = Counter(
        "tandem_autoscaler_decisions", "Decisions of plans", ("model", "role", "kind"), registry=registry
    )
    failures = Counter(
        "tandem_autoscaler_failures", "What could not be done or seen", ("model", "error_type"), registry=registry
    )
    return AutoscalerMetrics(
        leads=gauge("leads", "Whether this replica acts").labels(model),
        schedulers=gauge("schedulers", "Schedulers that answered").labels(model),
        picture_age_seconds=gauge("picture_age_seconds", "Since Kubernetes told of the pools").labels(model),
        failures={reason: failures.labels(model, reason) for reason in error_types()},
        pools={
            role: PoolMetrics(
                groups=groups.labels(model, role),
                ready_groups=ready.labels(model, role),
                needed_groups=needed.labels(model, role),
                predicted_seconds=predicted.labels(model, role),
                use=use.labels(model, role),
                draining=draining.labels(model, role),
                decisions={kind: decisions.labels(model, role, kind) for kind in _DECISIONS},
            )
            for role in ROLES
        },
    )
