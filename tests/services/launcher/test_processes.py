from pathlib import Path

from common.config.cluster import ClusterConfig
from common.config.place import PodPlace
from services.launcher.ports import PortRange
from services.launcher.processes import instance_names, pod_plans, port_ranges, resolve, scheduler_plans

FILE = Path("cluster.yaml")


class CountingPorts:
    """Hands out consecutive ports from 5000."""

    def __init__(self) -> None:
        self.next = 5000

    def __call__(self, count: int) -> int:
        first, self.next = self.next, self.next + count
        return first


def cluster(**parts: object) -> ClusterConfig:
    return ClusterConfig.model_validate({"model": {"path": "m", "name": "m"}, **parts})


def test_open_scheduler_ports_get_ranges_and_given_ones_stay() -> None:
    resolved = resolve(cluster(scheduler={"replicas": 3, "http_port": 8000}), CountingPorts()).scheduler
    assert (resolved.port, resolved.http_port, resolved.metrics_port) == (5000, 8000, 5003)


def test_every_pod_is_started_and_groups_meet_apart() -> None:
    config = cluster(
        prefill={"parallel": {"groups": 2}}, decode={"parallel": {"ep": 4, "tp": 2, "instances_per_pod": 1}}
    )
    plans = pod_plans(config, FILE, CountingPorts(), "text")
    assert [plan.name for plan in plans] == [
        PodPlace("prefill", 0, 0).name, PodPlace("prefill", 1, 0).name,
        PodPlace("decode", 0, 0).name, PodPlace("decode", 0, 1).name,
    ]  # fmt: skip
    meetings = [plan.command[plan.command.index("--rendezvous") + 1] for plan in plans]
    assert meetings[2] == meetings[3]
    assert len(set(meetings)) == 3
    metrics = [address for plan in plans for address in plan.metrics]
    assert len(metrics) == len(set(metrics)) == 4
    assert instance_names(config) == ["prefill-0-0", "prefill-1-0", "decode-0-0", "decode-0-1"]


def test_each_scheduler_replica_has_its_own_numbers() -> None:
    config = resolve(cluster(scheduler={"replicas": 2}), CountingPorts())
    plans = scheduler_plans(config, FILE, "text")
    assert [plan.command[-1] for plan in plans] == ["0", "1"]
    assert [plan.metrics for plan in plans] == [("127.0.0.1:5004",), ("127.0.0.1:5005",)]


def test_pods_of_a_machine_go_on_where_the_one_before_ends() -> None:
    worker = {"first_port": 7000, "first_metrics_port": 7100}
    config = cluster(decode={"worker": worker, "parallel": {"groups": 2, "ep": 4, "instances_per_pod": 2}})
    plans = [plan for plan in pod_plans(config, FILE, CountingPorts(), "text") if plan.name.startswith("decode")]
    given = [plan.command[plan.command.index("--first-port") + 1] for plan in plans]
    assert given == ["7000", "7002", "7004", "7006"]
    assert plans[1].metrics == ("127.0.0.1:7102", "127.0.0.1:7103")
    (prefill,) = [plan for plan in pod_plans(config, FILE, CountingPorts(), "text") if plan.name.startswith("prefill")]
    assert prefill.command[prefill.command.index("--first-port") + 1] == "0"  # any free one


def test_every_fixed_port_is_known_with_its_field() -> None:
    config = cluster(
        scheduler={"replicas": 2, "http_port": 8000},
        decode={"worker": {"first_port": 7000}, "parallel": {"groups": 2, "ep": 4, "tp": 2}},
        prefill={"worker": {"first_metrics_port": 7100}, "parallel": {"groups": 0}},
    )
    assert port_ranges(config) == [
        PortRange("scheduler.http_port", "127.0.0.1", 8000, 2),
        PortRange("decode.worker.first_port", "127.0.0.1", 7000, 4),
    ]


def test_every_process_is_told_how_to_log() -> None:
    config = cluster(decode={"parallel": {"groups": 2}})
    plans = scheduler_plans(config, FILE, "json") + pod_plans(config, FILE, CountingPorts(), "json")
    assert [plan.command[plan.command.index("--log-format") + 1] for plan in plans] == ["json"] * 4
