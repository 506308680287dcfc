import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from common.errors import ConfigError, Overloaded, TagMismatch
from common.telemetry.exporter import MetricsExporter, Probes
from common.telemetry.worker_metrics import BLOCK_STATES, worker_metrics

FINE = Probes(fault=lambda: None, ready=lambda: True)


def test_every_series_is_exported_before_the_first_request() -> None:
    registry = CollectorRegistry()
    metrics = worker_metrics(registry, model="tiny", role="decode", dp_rank=3)
    exporter = MetricsExporter(registry, "127.0.0.1", 0, FINE)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
    finally:
        exporter.close()
    labels = 'dp_rank="3",model="tiny",role="decode"'
    assert f"tandem_running{{{labels}}} 0.0" in text
    assert f"tandem_prefill_seconds_count{{{labels}}} 0.0" in text
    for state in BLOCK_STATES:
        assert f'tandem_kv_blocks{{{labels},state="{state}"}} 0.0' in text
    for reason in metrics.failures:
        assert f'error_type="{reason}"' in text


def test_failures_are_counted_by_reason() -> None:
    registry = CollectorRegistry()
    metrics = worker_metrics(registry, model="tiny", role="decode", dp_rank=0)
    metrics.count_failure(TagMismatch("block 3"))
    metrics.count_failure(Overloaded("pool", 1.0))
    labels = {"model": "tiny", "role": "decode", "dp_rank": "0", "error_type": "TAG_MISMATCH"}
    assert registry.get_sample_value("tandem_work_failures_total", labels) == 1.0


def test_a_taken_port_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            MetricsExporter(CollectorRegistry(), "127.0.0.1", port, FINE)
