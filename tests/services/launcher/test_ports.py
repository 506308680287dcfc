import re
from pathlib import Path

import pytest

from common.config.cluster import ClusterConfig
from common.errors import ConfigError
from common.telemetry.listener import listen
from services.launcher import ports
from services.launcher.cluster import LocalCluster
from services.launcher.ports import PortRange, free_ports, kernel_ports, require_ports
from services.launcher.run_directory import RunDirectory

HOST = "127.0.0.1"


def test_free_ports_are_free() -> None:
    require_ports([PortRange("scheduler.port", HOST, free_ports(3), 3)])


def test_free_ports_are_none_that_a_connection_may_get() -> None:
    kernel = set(kernel_ports())
    assert kernel
    for _ in range(50):
        first = free_ports(4)
        assert kernel.isdisjoint(range(first, first + 4))


@pytest.mark.parametrize("kernel", [range(0), range(1, 65536)])
def test_free_ports_where_the_kernel_has_none_or_all(kernel: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "kernel_ports", lambda: kernel)
    require_ports([PortRange("x", HOST, free_ports(2), 2)])


@pytest.mark.parametrize("host", [HOST, "::1", "::"])
def test_a_taken_port_is_named_with_its_field(host: str) -> None:
    first = free_ports(2)
    asked = [PortRange("decode.worker.first_port", host, first, 2)]
    require_ports(asked)
    said = re.escape(f"decode.worker.first_port = {first}: cannot listen on {host}:{first + 1}: Addr")
    with listen(host, first + 1), pytest.raises(ConfigError, match=said):
        require_ports(asked)


def test_ports_past_the_last_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"x = 65534: 3 ports from there on go past 65535, so at most 65533"):
        require_ports([PortRange("x", HOST, 65534, 3)])


@pytest.mark.parametrize("other", [8002, 8003, 7999])
def test_ranges_that_meet_are_refused(other: int) -> None:
    ranges = [PortRange("scheduler.port", HOST, 8000, 4), PortRange("decode.worker.first_port", HOST, other, 2)]
    last = other + 1
    said = f"scheduler.port = 8000: ports 8000 to 8003 meet those of decode.worker.first_port = {other}, to {last}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        require_ports(ranges)
    require_ports([PortRange("x", HOST, first := free_ports(1), 1), PortRange("y", "127.0.0.2", first, 1)])
    with pytest.raises(ConfigError, match="meet those of"):
        require_ports([PortRange("x", HOST, 8000, 1), PortRange("y", "0.0.0.0", 8000, 1)])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"decode": {"worker": {"first_port": 65535}, "parallel": {"groups": 2}}},
            "first_port = 65535: 2 ports",
        ),
        ({"prefill": {"worker": {"first_port": 9, "first_metrics_port": 9}}}, "prefill.worker.first_port = 9: ports 9"),
        ({"prefill": {"parallel": {"groups": 0}}}, "prefill.parallel.groups = 0: at least 1"),
        ({"decode": {"parallel": {"groups": 0}}}, "decode.parallel.groups = 0: at least 1"),
        ({"scheduler": {"port": 9}, "decode": {"worker": {"first_port": 9}}}, "scheduler.port = 9: ports 9 to 9 meet"),
    ],
)
def test_a_cluster_that_cannot_answer_starts_nothing(tmp_path: Path, parts: dict[str, object], said: str) -> None:
    config = ClusterConfig.model_validate({"model": {"path": "m", "name": "m"}, **parts})
    cluster = LocalCluster(config, RunDirectory.create(tmp_path / "run"))
    with pytest.raises(ConfigError, match=said):
        cluster.start()
    assert cluster.children == {}
    assert list(cluster.run.logs.iterdir()) == []
    assert cluster.stop() == []
