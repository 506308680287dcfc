"""What dashboards, alerts and aliases read is what running services export, and every process answers its probes."""

import json
import re
import urllib.request

from prometheus_client import CollectorRegistry, generate_latest

from common.version import VERSION
from services.autoscaler.metrics import autoscaler_metrics
from tests.cluster.running import RunningCluster
from tests.helm.prometheus import rules, shown_metrics


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as reply:
        body: bytes = reply.read()
    return body.decode()


def addresses(cluster: RunningCluster) -> tuple[str, ...]:
    endpoint = cluster.cluster.run.live_endpoint()
    assert endpoint is not None
    return endpoint.metrics


def autoscaler_exports() -> set[str]:
    """What the autoscaler's own registry exports; it cannot run without an API server."""
    registry = CollectorRegistry()
    autoscaler_metrics(registry, "any")
    return set(re.findall(r"^(tandem_\w+)[{ ]", generate_latest(registry).decode(), re.MULTILINE))


def test_every_metric_shown_is_exported(pairs: RunningCluster) -> None:
    text = "\n".join(get(address, "/metrics") for address in addresses(pairs))
    exported = set(re.findall(r"^(tandem_\w+)[{ ]", text, re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    missing = {
        name: where for name, where in shown_metrics().items() if name not in exported | recorded | autoscaler_exports()
    }
    assert missing == {}


def test_every_process_answers_for_itself(pairs: RunningCluster) -> None:
    assert len(addresses(pairs)) == 5  # a scheduler, two prefill and two decode instances
    for address in addresses(pairs):
        assert (get(address, "/healthz"), get(address, "/readyz")) == ("live\n", "ready\n")
        assert json.loads(get(address, "/version"))["version"] == VERSION
