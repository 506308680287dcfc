import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from common.telemetry.event_loop import fault_of
from common.telemetry.exporter import MetricsExporter, Probes
from common.version import VERSION


@dataclass
class Service:
    fault: str | None = None
    ready: bool = False


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def port(service: Service) -> Iterator[int]:
    probes = Probes(fault=lambda: service.fault, ready=lambda: service.ready)
    exporter = MetricsExporter(CollectorRegistry(), "127.0.0.1", 0, probes)
    yield exporter.port
    exporter.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_probes_answer_for_themselves(service: Service, port: int) -> None:
    assert get(port, "/healthz") == (200, "live\n")
    assert get(port, "/readyz") == (503, "not ready\n")
    service.ready = True
    assert get(port, "/readyz") == (200, "ready\n")
    service.fault = "the engine died"
    assert get(port, "/healthz") == (503, "not live: the engine died\n")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "families"), [("0.0.0.0", 2), ("::", 2), ("127.0.0.1", 1), ("::1", 1)])
def test_every_address_means_both_families(service: Service, host: str, families: int) -> None:
    probes = Probes(fault=lambda: service.fault, ready=lambda: service.ready)
    exporter = MetricsExporter(CollectorRegistry(), host, 0, probes)
    answers = 0
    for url in (f"http://127.0.0.1:{exporter.port}", f"http://[::1]:{exporter.port}"):
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5) as reply:
                answers += reply.status == 200
        except OSError:
            pass
    exporter.close()
    assert answers == families


def test_version_and_unknown_paths(port: int) -> None:
    status, body = get(port, "/version")
    assert (status, json.loads(body)["version"]) == (200, VERSION)
    assert get(port, "/metrics")[0] == 200
    assert get(port, "/nothing")[0] == 404


async def test_a_stuck_event_loop_is_noticed_from_outside() -> None:
    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(fault_of, loop, 5.0) is None
    with ThreadPoolExecutor() as executor:
        stuck = executor.submit(fault_of, loop, 0.05).result(10)  # waited for here, so the loop is stuck
    assert stuck == "the event loop did not answer within 0.05 s"


def test_a_closed_event_loop_does_not_answer() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert fault_of(loop, 5.0) == "the event loop is closed"
