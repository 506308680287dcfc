"""The very commands of rendered pods, started on this machine with the preset for CPUs, and their probes asked.

Redis and NATS are first missing, since nothing orders the start of pods.
"""

import asyncio
import re
import signal
import time
from collections.abc import Iterator

import pytest
import yaml

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from tests.fakes.kubernetes_api import FakeKubernetes
from tests.helm.chart import Chart
from tests.helm.cluster_double import asked_rights, granted_rights, kubeconfig_of, put_pools
from tests.helm.prometheus import names_in, rules, shown_metrics
from tests.helm.running import Release, rendered

ORDER = ("prefill", "decode", "scheduler", "autoscaler", "redis", "nats")
# The pools have two groups each in this release; Kubernetes is told that the second of prefill is missing.
SETTINGS = [
    "autoscaler.enabled=true", "autoscaler.settings.interval_s=0.2", "autoscaler.settings.lease_renew_s=0.2",
    *(f"{role}.{name}=2" for role in ("prefill", "decode") for name in ("groups", "autoscale.minGroups")),
]  # fmt: skip


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[FakeKubernetes]:
    double = FakeKubernetes()
    yield double
    double.close()


@pytest.fixture(scope="module")
def release(helm4: Chart, kubernetes: FakeKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    release = rendered(helm4, SETTINGS, tmp_path_factory.mktemp("release"))
    put_pools(kubernetes, release.objects, missing="prod-tandem-prefill-g1")
    release.outside["KUBECONFIG"] = str(kubeconfig_of(kubernetes, release.directory))
    yield release
    release.stop()


@pytest.mark.helm
def test_pods_come_up_in_any_order_and_probes_tell_the_truth(release: Release) -> None:
    for role in ORDER[:4]:
        release.start(role)
    for role in ORDER[:4]:  # they meet neither Redis nor NATS
        release.started[role].wait_to_say("waiting for", 120)
    for role in ORDER[4:]:
        release.start(role)
    for role in ORDER[:4]:
        pod = release.started[role]
        pod.wait("startupProbe", 200, 120)
        pod.wait("readinessProbe", 200, 60)
        assert pod.probe("livenessProbe") == 200
        status, version = pod.ask("/version")
        assert (status, yaml.safe_load(version)["name"]) == (200, "tandem-serve")


@pytest.mark.helm
def test_a_request_goes_through(release: Release) -> None:
    async def ask() -> str:
        text = ""
        async with InferenceClient(f"{release.address}:{release.started['scheduler'].ports['grpc']}") as client:
            request = GenerateRequest(
                text="In the beginning",
                sampling=SamplingOptions(temperature=0.0),
                stopping=Stopping(max_tokens=8, ignore_eos=True),
            )
            async for delta in client.generate(request):
                text += delta.text
        return text

    assert asyncio.run(ask())


@pytest.mark.helm
def test_helm_test_sends_a_request(release: Release) -> None:
    done = release.run("test", "request")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("In the beginning")
    assert re.search(r" [1-8] generated,", done.stderr), done.stderr


@pytest.mark.helm
@pytest.mark.parametrize("role", ["doctor", "decode"])
def test_the_doctor_has_nothing_against_it(release: Release, role: str) -> None:
    done = release.run(role, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_the_autoscaler_brings_back_a_group_with_no_more_rights_than_it_has(
    release: Release, kubernetes: FakeKubernetes
) -> None:
    deadline_s = time.monotonic() + 60.0
    granted = granted_rights(release.objects)
    missing = "prod-tandem-prefill-g1"
    while not kubernetes.get("statefulsets", missing)["spec"]["replicas"] or asked_rights(kubernetes) < granted:
        assert time.monotonic() < deadline_s, release.started["autoscaler"].log.read_text()[-3000:]
        time.sleep(0.05)
    assert asked_rights(kubernetes) == granted


@pytest.mark.helm
def test_everything_shown_is_exported(release: Release) -> None:
    exported: set[str] = set()
    for role in ORDER[:4]:
        text = release.started[role].ask("/metrics")[1]
        exported |= set(re.findall(r"^(tandem_\w+)[{ ]", text, re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert {name: where for name, where in shown_metrics().items() if name not in exported | recorded} == {}
    assert names_in("rate(tandem_no_such_total[5m])") - exported  # a name that nobody exports would show


@pytest.mark.helm
def test_draining_pods_are_live_and_not_ready_and_end_within_their_grace(release: Release) -> None:
    for role in ("autoscaler", "scheduler", "decode", "prefill"):
        pod = release.started[role]
        pod.process.send_signal(signal.SIGTERM)
        grace_s = release.template(role)["spec"].get("terminationGracePeriodSeconds", 30)
        seen = set()
        begun_s = time.monotonic()
        while pod.process.poll() is None:
            assert time.monotonic() - begun_s < grace_s, f"{role} outlives its grace"
            seen.add((pod.probe("livenessProbe"), pod.probe("readinessProbe")))
            time.sleep(0.02)
        assert pod.process.returncode == 0, pod.log.read_text()[-3000:]
        assert (503, 200) not in seen


@pytest.mark.helm
def test_helm_test_fails_when_nobody_answers(release: Release) -> None:
    done = release.run("test", "request")
    assert done.returncode != 0
    assert "failed to connect" in done.stderr
