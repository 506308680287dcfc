"""The process: started as a pod starts it, probed, and ended."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from common.clock import MonotonicClock
from common.config.load import parse_cluster
from common.errors import ConfigError
from services.autoscaler.surroundings import open_surroundings
from services.launcher.ports import free_ports
from tests.fakes.kubernetes_api import leader_worker_set

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "tandem-bard"


def fetch(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


@pytest.fixture
def process(kubernetes, nats_url, tmp_path):
    with started(kubernetes, nats_url, tmp_path) as running:
        yield running


@contextmanager
def started(kubernetes, nats_url, tmp_path):
    for role in ("prefill", "decode"):
        kubernetes.put("leaderworkersets", leader_worker_set(role, 1))
    port = free_ports(1)
    config, kubeconfig = tmp_path / "tandem.yaml", tmp_path / "kubeconfig"
    document = {
        "model": {"path": str(MODEL), "name": "tandem-bard"},
        "nats": {"url": nats_url},
        "scheduler": {"port": 1},
        "autoscaler": {"metrics_port": port, "lease_renew_s": 0.2, "interval_s": 0.2},
    }
    config.write_text(yaml.safe_dump(document))
    server = {"cluster": {"server": f"http://127.0.0.1:{kubernetes.http.server_port}"}, "name": "c"}
    context = {"context": {"cluster": "c", "user": "u"}, "name": "x"}
    kubeconfig.write_text(
        yaml.safe_dump(
            {"clusters": [server], "contexts": [context], "current-context": "x", "users": [{"name": "u", "user": {}}]}
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "services.autoscaler", "--config", str(config), "--namespace", "default"],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "autoscaler-x"},
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process, port
    process.kill()
    process.wait()
    process.stderr.close()


def test_the_process_leads_is_probed_and_gives_the_lease_back(kubernetes, process):
    running, port = process
    deadline_s = time.monotonic() + 60.0
    leads = 'tandem_autoscaler_leads{model="tandem-bard"} 1.0'
    while leads not in fetch(port, "/metrics")[1]:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert fetch(port, "/healthz")[0] == 200
    assert fetch(port, "/readyz")[0] == 200
    lease = kubernetes.get("leases", "tandem-autoscaler")["spec"]
    assert lease["holderIdentity"].startswith("autoscaler-x-")
    running.send_signal(signal.SIGTERM)
    assert running.wait(20.0) == 0
    assert kubernetes.get("leases", "tandem-autoscaler")["spec"]["holderIdentity"] == ""
    assert "closed" in running.stderr.read()


def test_a_process_that_waits_ends_at_once_when_asked(kubernetes, tmp_path):
    address = f"nats://127.0.0.1:{free_ports(1)}"
    with started(kubernetes, address, tmp_path) as (running, _):
        while "waiting for NATS" not in (line := running.stderr.readline()):
            assert line, "the autoscaler ended instead of waiting"
        running.send_signal(signal.SIGTERM)
        assert running.wait(5.0) == 2
        (line,) = running.stderr.read().splitlines()
        assert f"asked to end while waiting for NATS at {address}" in line


async def test_a_file_without_nats_is_refused():
    config = parse_cluster({"model": {"path": "x", "name": "m"}}, "test")
    with pytest.raises(ConfigError, match=r"nats.url = embedded"):
        async with open_surroundings(config, "default", MonotonicClock(), CollectorRegistry(), asyncio.Event()):
            pass
