"""What an upgrade keeps of what the cluster has: Helm asks a server that answers over HTTP."""

import base64
from pathlib import Path

import pytest

from tests.helm.chart import NAMESPACE, Chart
from tests.helm.live_cluster import live_cluster
from tests.helm.objects import Object, one
from tests.helm.test_matrix import SWITCHES


def upgraded(chart: Chart, installed: list[Object], settings: list[str], directory: Path) -> list[Object]:
    known = chart.objects("h100-ep16", settings)
    with live_cluster(installed, known, NAMESPACE, directory) as kubeconfig:
        return chart.over(kubeconfig, "h100-ep16", settings)


def leader_worker_set(role: str, replicas: int) -> Object:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": f"prod-tandem-{role}", "namespace": NAMESPACE},
        "spec": {"replicas": replicas},
    }


def stateful_set(role: str, group: int, replicas: int) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"prod-tandem-{role}-g{group}", "namespace": NAMESPACE},
        "spec": {"replicas": replicas},
    }


def secret(name: str, **data: str) -> Object:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"name": f"prod-tandem-{name}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def test_passwords_are_kept(chart: Chart, tmp_path: Path) -> None:
    objects = upgraded(chart, [secret("redis", password="r1"), secret("nats", other="n1")], [], tmp_path)
    assert one(objects, "Secret", "-redis")["data"] == secret("redis", password="r1")["data"]
    made = base64.b64decode(one(objects, "Secret", "-nats")["data"]["password"])
    assert len(made) == 32  # the key is new, so is the password


def there(kind: str, name: str) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": f"prod-tandem-{name}", "namespace": NAMESPACE}}


BROUGHT = [there("Service", "redis"), there("Service", "nats"), there("PersistentVolumeClaim", "model")]


def test_the_doctor_comes_before_an_upgrade_unless_that_brings_what_it_asks(helm4: Chart, tmp_path: Path) -> None:
    def hook(installed: list[Object], settings: list[str]) -> str:
        job = one(upgraded(helm4, installed, settings, tmp_path), "Job", "-doctor")
        return str(job["metadata"]["annotations"]["helm.sh/hook"])

    assert hook(BROUGHT, []) == "post-install,pre-upgrade"
    for missing in range(3):
        assert hook(BROUGHT[:missing] + BROUGHT[missing + 1 :], []) == "post-install,post-upgrade"
    elsewhere = [*SWITCHES["external"], "model.store.claimName=models"]
    assert hook([], elsewhere) == "pre-install,pre-upgrade"


@pytest.mark.parametrize(("live", "kept"), [(1, 1), (3, 3), (4, 4), (9, 4), (0, 1)])
def test_the_autoscalers_count_is_kept_within_its_bounds(helm4: Chart, tmp_path: Path, live: int, kept: int) -> None:
    settings = ["autoscaler.enabled=true"]
    objects = upgraded(helm4, [leader_worker_set("decode", live)], settings, tmp_path)
    assert one(objects, "LeaderWorkerSet", "-decode")["spec"]["replicas"] == kept
    assert one(objects, "LeaderWorkerSet", "-prefill")["spec"]["replicas"] == 1


def test_without_the_autoscaler_the_values_count(helm4: Chart, tmp_path: Path) -> None:
    objects = upgraded(helm4, [leader_worker_set("decode", 3)], ["decode.groups=2"], tmp_path)
    assert one(objects, "LeaderWorkerSet", "-decode")["spec"]["replicas"] == 2


def test_a_group_of_another_size_runs_whole(helm4: Chart, tmp_path: Path) -> None:
    """Groups 0 and 2 ran with one pod each before the shape became two nodes; the others did not."""
    installed = [stateful_set("decode", group, replicas) for group, replicas in enumerate((1, 0, 1, 0))]
    settings = ["autoscaler.enabled=true", "groupController=StatefulSet"]
    objects = upgraded(helm4, installed, settings, tmp_path)
    replicas = [one(objects, "StatefulSet", f"-decode-g{group}")["spec"]["replicas"] for group in range(4)]
    assert replicas == [2, 0, 2, 0]


def test_the_fallback_shares_no_name_with_what_a_leader_worker_set_makes(helm4: Chart) -> None:
    """Its controller makes a service and a set of leaders of its own name, and a set of workers for each group."""
    pools = [o["metadata"]["name"] for o in helm4.objects("h100-ep16") if o["kind"] == "LeaderWorkerSet"]
    theirs = {("Service", name) for name in pools} | {("StatefulSet", name) for name in pools}
    theirs |= {("StatefulSet", f"{name}-{group}") for name in pools for group in range(100)}
    fallback = helm4.objects("h100-ep16", ["groupController=StatefulSet", "decode.groups=3"])
    assert not theirs & {(o["kind"], o["metadata"]["name"]) for o in fallback}
