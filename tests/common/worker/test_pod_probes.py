"""A pod is live and ready when all of its instances are."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from common.telemetry.exporter import MetricsExporter, Probes
from common.worker.pod_probes import pod_probes


@dataclass
class Instance:
    fault: str | None = None
    ready: bool = True
    address: str = ""


@pytest.fixture
def instances() -> Iterator[list[Instance]]:
    made, exporters = [Instance(), Instance(), Instance()], []
    for one in made:
        probes = Probes(fault=lambda one=one: one.fault, ready=lambda one=one: one.ready)  # type: ignore[misc]
        exporters.append(MetricsExporter(CollectorRegistry(), "127.0.0.1", 0, probes))
        one.address = f"127.0.0.1:{exporters[-1].port}"
    yield made
    for exporter in exporters:
        exporter.close()


def test_every_instance_counts(instances: list[Instance]) -> None:
    pod = pod_probes([one.address for one in instances])
    assert (pod.fault(), pod.ready()) == (None, True)
    instances[2].ready = False
    assert (pod.fault(), pod.ready()) == (None, False)
    instances[2].ready, instances[1].fault = True, "the reader hangs"
    why = f"the instance at {instances[1].address}: not live: the reader hangs"
    assert (pod.fault(), pod.ready()) == (why, True)


def test_who_does_not_answer_is_neither(instances: list[Instance]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stuck:  # takes connections and says nothing, as a stopped process
        address = f"127.0.0.1:{stuck.getsockname()[1]}"
        pod = pod_probes([instances[0].address, address])
        assert (pod.fault(), pod.ready()) == (f"the instance at {address}: no answer: timed out", False)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    pod = pod_probes([instances[0].address, address])
    why = f"the instance at {address}: no answer: [Errno 111] Connection refused"
    assert (pod.fault(), pod.ready()) == (why, False)


def test_a_proxy_is_not_asked(instances: list[Instance]) -> None:
    said = "from common.worker.pod_probes import pod_probes; import sys; sys.exit(pod_probes(sys.argv[1:]).fault())"
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
    subprocess.run([sys.executable, "-c", said, instances[0].address], env=environment, check=True)


def test_what_is_no_answer_is_a_no() -> None:
    with socket.create_server(("127.0.0.1", 0)) as odd:
        pod = pod_probes([f"127.0.0.1:{odd.getsockname()[1]}"])

        def babble() -> None:
            connection, _ = odd.accept()
            with connection:
                connection.sendall(b"junk\r\n\r\n")

        babbling = threading.Thread(target=babble)
        babbling.start()
        assert "no answer" in (pod.fault() or "")
        babbling.join(10)
