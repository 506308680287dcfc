"""The very commands of rendered pods, started on this machine with the preset for CPUs, and their probes asked.

What Kubernetes would do is done here in small: one address a pod (all are this machine), environment out of the pod's
specification, ports as declared, Redis and NATS first missing, since nothing orders the start of pods.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from services.launcher.ports import free_ports
from tests.helm.chart import ROOT, Chart, tandem_yaml
from tests.helm.objects import Object, component, containers, pods
from tests.helm.prometheus import names_in, rules, shown_metrics

ADDRESS = "127.0.0.1"
SECRETS = {"REDIS_PASSWORD": "r3d1s", "NATS_PASSWORD": "n4ts"}
ORDER = ("prefill", "decode", "scheduler", "redis", "nats")


@dataclass
class Pod:
    """One started pod: its main container's process."""

    container: Object
    process: "subprocess.Popen[bytes]"
    log: Path
    ports: dict[str, int] = field(default_factory=dict)

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while nobody listens."""
        port = self.ports.get("metrics") or self.ports["metrics-0"]
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}:{port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def probe(self, name: str) -> int:
        return self.ask(self.container[name]["httpGet"]["path"])[0]

    def wait(self, probe: str, status: int, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while (now := self.probe(probe)) != status:
            assert self.process.poll() is None, f"ended: {self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline_s, f"{probe}: {now}, not {status}: {self.log.read_text()[-3000:]}"
            time.sleep(0.1)


@dataclass
class Release:
    """The rendered release, with ports of this machine in the places of the declared ones."""

    objects: list[Object]
    directory: Path
    started: dict[str, Pod] = field(default_factory=dict)

    def start(self, role: str) -> Pod:
        template = next(t for _, t in pods(self.objects) if component(t) == role)
        container = template["spec"]["containers"][0]
        environment = self._environment(template, container)
        command = [self._expanded(part, environment) for part in (*container["command"], *container["args"])]
        assert command[0] == "python"
        scratch = self.directory / role
        scratch.mkdir()
        command = [sys.executable, *command[1:]]
        command = [str(scratch) if part == "/tmp" else part for part in command]
        log = scratch / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT
            )
        pod = Pod(container, process, log, {p["name"]: p["containerPort"] for p in container["ports"]})
        self.started[role] = pod
        return pod

    def examine(self, role: str) -> "subprocess.CompletedProcess[str]":
        """The doctor as it runs before a worker, or as the hook."""
        template = next(t for _, t in pods(self.objects) if component(t) == ("doctor" if role == "scheduler" else role))
        (container,) = (c for c in containers(template) if c["name"] == "doctor")
        environment = self._environment(template, container)
        assert container["command"][0] == "tandem"
        arguments = [self._expanded(part, environment) for part in (*container["command"][1:], *container["args"])]
        command = [sys.executable, "-m", "services.cli", *arguments]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    def _environment(self, template: Object, container: Object) -> dict[str, str]:
        labels = template["metadata"]["labels"] | {"apps.kubernetes.io/pod-index": "0"}
        # As in a pod: nothing but what is declared, and what this machine's interpreter needs.
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        for entry in container["env"]:
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                environment[entry["name"]] = SECRETS[entry["name"]]
            elif "fieldRef" in source:
                path = source["fieldRef"]["fieldPath"]
                label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
                environment[entry["name"]] = labels[label[1]] if label else {"status.podIP": ADDRESS}[path]
            else:
                environment[entry["name"]] = self._expanded(entry["value"], environment)
        return environment

    def _expanded(self, text: str, environment: dict[str, str]) -> str:
        text = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text)
        text = text.replace("/etc/tandem/tandem.yaml", str(self.directory / "tandem.yaml"))
        # Names of services and of the group's first pod are this machine.
        return re.sub(r"prod-tandem-[\w.-]+(?=:\d)", ADDRESS, text)

    def stop(self) -> None:
        for role in ("scheduler", "decode", "prefill", "redis", "nats"):
            if (pod := self.started.get(role)) is not None and pod.process.poll() is None:
                pod.process.send_signal(signal.SIGTERM)
                try:
                    pod.process.wait(60)
                except subprocess.TimeoutExpired:
                    pod.process.kill()
                    pod.process.wait()


@pytest.fixture(scope="module")
def release(helm4: Chart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    first = free_ports(12)
    settings = [
        f"scheduler.ports.grpc={first}", f"scheduler.ports.http={first + 1}", f"scheduler.ports.metrics={first + 2}",
        f"prefill.ports.grpc={first + 3}", f"prefill.ports.metrics={first + 4}",
        f"prefill.ports.rendezvous={first + 5}", f"decode.ports.grpc={first + 6}",
        f"decode.ports.metrics={first + 7}", f"decode.ports.rendezvous={first + 8}",
        f"redis.port={first + 9}", f"nats.port={first + 10}",
    ]  # fmt: skip
    objects = helm4.objects("local", settings)
    directory = tmp_path_factory.mktemp("release")
    file = tandem_yaml(objects).replace("/app/models", str(ROOT / "models"))
    (directory / "tandem.yaml").write_text(file)
    release = Release(objects, directory)
    yield release
    release.stop()


@pytest.mark.helm
def test_pods_come_up_in_any_order_and_probes_tell_the_truth(release: Release) -> None:
    for role in ORDER[:3]:
        release.start(role)
    time.sleep(1.0)  # they meet neither Redis nor NATS
    assert all(pod.process.poll() is None for pod in release.started.values())
    for role in ORDER[3:]:
        release.start(role)
    for role in ("prefill", "decode", "scheduler"):
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
        async with InferenceClient(f"{ADDRESS}:{release.started['scheduler'].ports['grpc']}") as client:
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
@pytest.mark.parametrize("role", ["scheduler", "decode"])
def test_the_doctor_has_nothing_against_it(release: Release, role: str) -> None:
    done = release.examine(role)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_everything_shown_is_exported(release: Release) -> None:
    exported: set[str] = set()
    for role in ("prefill", "decode", "scheduler"):
        text = release.started[role].ask("/metrics")[1]
        exported |= set(re.findall(r"^(tandem_\w+)[{ ]", text, re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    missing = {name: where for name, where in shown_metrics().items() if name not in exported | recorded}
    assert missing == {}
    assert names_in("rate(tandem_no_such_total[5m])") - exported  # a name that nobody exports would show


@pytest.mark.helm
def test_draining_pods_are_live_and_not_ready_and_end_within_their_grace(release: Release) -> None:
    for role in ("scheduler", "decode", "prefill"):
        pod = release.started[role]
        template = next(t for _, t in pods(release.objects) if component(t) == role)
        pod.process.send_signal(signal.SIGTERM)
        grace_s = template["spec"]["terminationGracePeriodSeconds"]
        seen = set()
        begun_s = time.monotonic()
        while pod.process.poll() is None:
            assert time.monotonic() - begun_s < grace_s, f"{role} outlives its grace"
            seen.add((pod.probe("livenessProbe"), pod.probe("readinessProbe")))
            time.sleep(0.02)
        assert pod.process.returncode == 0, pod.log.read_text()[-3000:]
        assert (503, 200) not in seen
