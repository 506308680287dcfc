"""Pods of a rendered release, run on this machine: the very commands, environment and probes.

What Kubernetes would do is done here in small: one address for all pods, environment out of the pod's specification,
ports as declared, names of services resolved to this machine, mounted paths put below a directory.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.config.address import host_port
from services.launcher.ports import free_ports
from tests.helm.chart import ROOT, Chart, tandem_yaml
from tests.helm.objects import Object, component, containers, pods

SECRETS = {"REDIS_PASSWORD": "r3d1s", "NATS_PASSWORD": "n4ts"}  # of the bundled servers


@dataclass
class Pod:
    """One started pod: its main container's process."""

    container: Object
    process: "subprocess.Popen[bytes]"
    log: Path
    address: str
    ports: dict[str, int]

    def ask(self, path: str, port_name: str = "") -> tuple[int, str]:
        """Status and body; 0 while nobody listens. The port is that of metrics unless named."""
        port = self.ports[port_name] if port_name else self.ports.get("metrics") or self.ports["metrics-0"]
        try:
            with urllib.request.urlopen(f"http://{host_port(self.address, port)}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def probe(self, name: str) -> int:
        check = self.container[name]["httpGet"]
        return self.ask(check["path"], check["port"])[0]

    def wait(self, probe: str, status: int, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while (now := self.probe(probe)) != status:
            assert self.process.poll() is None, f"ended: {self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline_s, f"{probe}: {now}, not {status}: {self.log.read_text()[-3000:]}"
            time.sleep(0.1)

    def wait_to_say(self, text: str, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while text not in (said := self.log.read_text()):
            assert self.process.poll() is None, f"ended: {said[-3000:]}"
            assert time.monotonic() < deadline_s, f"not {text!r}: {said[-3000:]}"
            time.sleep(0.1)


@dataclass
class Release:
    """The rendered release, with ports of this machine in the places of the declared ones."""

    objects: list[Object]
    directory: Path
    address: str = "127.0.0.1"
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRETS))
    mounts: dict[str, Path] = field(default_factory=dict)  # where what pods mount is here
    outside: dict[str, str] = field(default_factory=dict)  # environment that a cluster gives beside the specification
    started: dict[str, Pod] = field(default_factory=dict)

    def write_config(self) -> None:
        """The cluster's file as pods of this machine read it."""
        text = tandem_yaml(self.objects).replace("/app/models", str(ROOT / "models"))
        (self.directory / "tandem.yaml").write_text(self._here(text))

    def start(self, role: str, node: int = 0, address: str = "") -> Pod:
        """Start a pod, or start it anew in what its volumes still hold.

        Args:
            node: of the group; a pod of its own has an address of its own.
        """
        name = f"{role}-{node}" if node else role
        address = address or self.address
        template = self.template(role)
        container = template["spec"]["containers"][0]
        environment = self._environment(template, container, node, address)
        scratch = self.directory / name
        (scratch / "shm").mkdir(parents=True, exist_ok=True)
        own = {"/tmp": str(scratch), "/dev/shm": str(scratch / "shm")}
        command = [own.get(part, part) for part in self._command(container, environment)]
        log = scratch / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT
            )
        pod = Pod(container, process, log, address, {p["name"]: p["containerPort"] for p in container["ports"]})
        self.started[name] = pod
        return pod

    def run(self, role: str, container: str) -> "subprocess.CompletedProcess[str]":
        """A container that ends by itself."""
        template = self.template(role)
        (found,) = (c for c in containers(template) if c["name"] == container)
        environment = self._environment(template, found, 0, self.address)
        command = self._command(found, environment)
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
        )

    def template(self, role: str) -> Object:
        return next(template for _, template in pods(self.objects) if component(template) == role)

    def _command(self, container: Object, environment: dict[str, str]) -> list[str]:
        match container["command"]:
            case ["python", *rest]:
                command = [sys.executable, *rest]
            case ["tandem", *rest]:
                command = [sys.executable, "-m", "services.cli", *rest]
            case other:
                raise AssertionError(f"what is {other}?")
        return command + [self._expanded(part, environment) for part in container["args"]]

    def _environment(self, template: Object, container: Object, node: int, address: str) -> dict[str, str]:
        labels = template["metadata"]["labels"] | {"apps.kubernetes.io/pod-index": str(node)}
        # As in a pod: nothing but what is declared, and what this machine's interpreter needs.
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **self.outside}
        for entry in container["env"]:
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                environment[entry["name"]] = self.secrets[entry["name"]]
            elif "fieldRef" in source:
                path = source["fieldRef"]["fieldPath"]
                label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
                environment[entry["name"]] = labels[label[1]] if label else {"status.podIP": address}[path]
            else:
                environment[entry["name"]] = self._expanded(entry["value"], environment)
        return environment

    def _expanded(self, text: str, environment: dict[str, str]) -> str:
        text = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text)
        text = text.replace("/etc/tandem/tandem.yaml", str(self.directory / "tandem.yaml"))
        for path, here in self.mounts.items():
            text = text.replace(path, str(here))
        return self._here(text)

    def _here(self, text: str) -> str:
        """Names of services and of a group's first pod are this machine."""
        host = host_port(self.address, 0).removesuffix(":0")
        return re.sub(r"prod-tandem-[\w.-]+(?=:\d)", host, text)

    def stop(self) -> None:
        """All at once; front doors first would be kinder, and slower."""
        pods = [pod for pod in self.started.values() if pod.process.poll() is None]
        for pod in pods:
            pod.process.send_signal(signal.SIGTERM)
        for pod in pods:
            try:
                pod.process.wait(60)
            except subprocess.TimeoutExpired:
                pod.process.kill()
                pod.process.wait()


def port_settings() -> list[str]:
    """Ports of this machine in the places of the chart's own."""
    names = (
        "scheduler.ports.grpc", "scheduler.ports.http", "scheduler.ports.metrics", "prefill.ports.grpc",
        "prefill.ports.metrics", "prefill.ports.rendezvous", "decode.ports.grpc", "decode.ports.metrics",
        "decode.ports.rendezvous", "prefill.ports.health", "decode.ports.health",
        "redis.port", "nats.port", "autoscaler.ports.metrics",
    )  # fmt: skip
    first = free_ports(len(names))
    return [f"{name}={first + i}" for i, name in enumerate(names)]


def rendered(chart: Chart, settings: Sequence[str], directory: Path, address: str = "127.0.0.1") -> Release:
    """The preset for CPUs, ready to be started."""
    release = Release(chart.objects("local", [*port_settings(), *settings]), directory, address)
    release.write_config()
    return release
