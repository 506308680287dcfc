"""What rendered pods say is what the processes take: flags, ports, probes, environment, budgets, rights."""

import ast
import re
import shlex
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import services.cli
from common.worker.arguments import parse_arguments
from tests.helm.chart import NAMESPACE, PRESETS, ROOT, Chart, tandem_yaml
from tests.helm.objects import Object, component, containers, one, pods
from tests.helm.test_matrix import GPU_SWITCHES, SWITCHES
from tests.helm.test_presets import config_of

WORKERS = ("prefill", "decode")
EVERYTHING = [*SWITCHES["autoscaler"], *GPU_SWITCHES["rdma"], *GPU_SWITCHES["download-claim"]]
# Read by libraries, not by this project.
FOREIGN = re.compile(
    r"(UCX|NCCL|NVSHMEM|GLOO)_[A-Z0-9_]+|HOME|SSL_CERT_FILE|TRITON_CACHE_DIR|DG_JIT_CACHE_DIR|FLASHINFER_WORKSPACE_BASE"
)
INJECTED = {"LWS_LEADER_ADDRESS"}  # by LeaderWorkerSet's controller, into every container


@pytest.fixture(scope="module")
def everything(helm4: Chart) -> list[Object]:
    return helm4.objects("h100-ep16", EVERYTHING)


@pytest.fixture(scope="module")
def local(helm4: Chart) -> list[Object]:
    return helm4.objects("local")


def named(object_: dict[str, Any], name: str) -> Any:
    (found,) = (entry for entry in object_ if entry["name"] == name)  # type: ignore[index]
    return found


def worker(objects: list[Object], role: str) -> tuple[Object, Object]:
    """A pool's pod and its main container."""
    template = next(t for name, t in pods(objects) if component(t) == role)
    return template, template["spec"]["containers"][0]


@pytest.mark.parametrize("role", WORKERS)
@pytest.mark.parametrize("shape", ["everything", "local"])
def test_workers_take_their_flags(role: str, shape: str, request: pytest.FixtureRequest) -> None:
    _, container = worker(request.getfixturevalue(shape), role)
    assert container["command"] == ["python", "-m", f"services.{role}.pod"]
    filled = [{"$(GROUP)": "1", "$(NODE)": "3"}.get(argument, argument) for argument in container["args"]]
    arguments = parse_arguments(role, filled)  # type: ignore[arg-type]
    assert (arguments.config, arguments.log_format) == (Path("/etc/tandem/tandem.yaml"), "json")
    assert (arguments.pod.group, arguments.pod.node) == (1, 3)
    (shm,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "shm")
    assert str(arguments.clear_shared_memory) == shm
    host, _, port = arguments.rendezvous.rpartition(":")
    assert int(port) == named(container["ports"], "rendezvous")["containerPort"]
    assert arguments.health_port == named(container["ports"], "health")["containerPort"]
    leader = f"prod-tandem-{role}-g0-0.prod-tandem-{role}-pods.{NAMESPACE}.svc"
    assert host == ("$(LWS_LEADER_ADDRESS)" if shape == "everything" else leader)


def test_modules_exist_and_commands_are_known(everything: list[Object], local: list[Object]) -> None:
    group = typer.main.get_command(services.cli.app)
    for _, template in [*pods(everything), *pods(local)]:
        for container in containers(template):
            match container["command"]:
                case ["python", "-m", module]:
                    file = ROOT / module.replace(".", "/")
                    package = file / "__main__.py"
                    assert package.exists() or "__main__" in file.with_suffix(".py").read_text(), module
                case ["tandem", command]:
                    found = group.commands[command]  # type: ignore[attr-defined]
                    found.make_context(command, list(container["args"]))  # raises on what it does not take
                case other:
                    pytest.fail(f"what is {other}?")


def flags_of(file: Path) -> set[str]:
    """Every ``--flag`` that a file of ours names in a string."""
    strings = [n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)]
    return {text for text in strings if isinstance(text, str) and re.fullmatch(r"--[a-z-]+", text)}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("scheduler", "services/scheduler/main.py"),
        ("redis", "services/launcher/serve_bundled.py"),
        ("nats", "services/launcher/serve_bundled.py"),
    ],
)
def test_other_services_take_their_flags(local: list[Object], name: str, module: str) -> None:
    _, container = worker(local, name)
    given = {argument for argument in container["args"] if argument.startswith("--")}
    assert given <= flags_of(ROOT / module)


def test_the_autoscaler_takes_its_flags(everything: list[Object]) -> None:
    _, container = worker(everything, "autoscaler")
    given = {argument for argument in container["args"] if argument.startswith("--")}
    assert given == {"--config", "--namespace", "--log-format"}
    assert given <= flags_of(ROOT / "services/autoscaler/main.py")
    assert container["args"][3] == NAMESPACE
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"metrics": config_of(everything).autoscaler.metrics_port}


@pytest.mark.parametrize("shape", ["everything", "local"])
def test_ports_are_the_files(shape: str, request: pytest.FixtureRequest) -> None:
    objects = request.getfixturevalue(shape)
    config = config_of(objects)
    for role, pool in (("prefill", config.prefill), ("decode", config.decode)):
        _, container = worker(objects, role)
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        instances = pool.parallel.instances_per_pod
        for i in range(instances):
            assert ports[f"grpc-{i}"] == pool.worker.first_port + i
            assert ports[f"metrics-{i}"] == pool.worker.first_metrics_port + i
        assert len(ports) == len(set(ports.values())) == 2 * instances + 2
    _, container = worker(objects, "scheduler")
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    scheduler = config.scheduler
    assert ports == {"grpc": scheduler.port, "http": scheduler.http_port, "metrics": scheduler.metrics_port}
    service = one(objects, "Service", "-scheduler")["spec"]["ports"]
    assert {p["name"]: p["port"] for p in service} == {"grpc": scheduler.port, "http": scheduler.http_port}


def test_every_probe_asks_a_port_and_a_path_that_exist(everything: list[Object], local: list[Object]) -> None:
    paths = set(re.findall(r'case "(/\w+)"', (ROOT / "common/telemetry/exporter.py").read_text()))
    for _, template in [*pods(everything), *pods(local)]:
        for container in template["spec"]["containers"]:
            probes = {name: container[name] for name in container if name.endswith("Probe")}
            if component(template) not in ("test", "doctor"):
                assert set(probes) == {"startupProbe", "livenessProbe", "readinessProbe"}
            for name, probe in probes.items():
                check = probe.get("httpGet") or probe["tcpSocket"]
                assert check["port"] in {p["name"] for p in container["ports"]}
                if "httpGet" in probe:
                    assert check["path"] in paths
                    assert check["path"] == ("/readyz" if name == "readinessProbe" else "/healthz")


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_budgets_follow_from_one_another(helm4: Chart, preset: str | None) -> None:
    objects = helm4.objects(preset)
    config = config_of(objects)
    for role, pool in (("prefill", config.prefill), ("decode", config.decode)):
        template, container = worker(objects, role)
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= pool.worker.start_timeout_s
        pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
        grace_s = template["spec"]["terminationGracePeriodSeconds"]
        # The worker's own drain time covers the leases that decode still holds.
        assert pool.worker.drain_timeout_s >= config.prefill.lease_s
        assert grace_s >= pause_s + pool.worker.drain_timeout_s + 10
        if preset not in ("local",):
            assert 45 * 60 <= pool.worker.start_timeout_s <= 100 * 60
    template, container = worker(objects, "scheduler")
    startup = container["startupProbe"]
    waits_s = config.redis.start_timeout_s + config.nats.start_timeout_s
    assert startup["periodSeconds"] * startup["failureThreshold"] >= waits_s
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert template["spec"]["terminationGracePeriodSeconds"] >= pause_s + config.scheduler.drain_timeout_s + 10


def environment_of(container: Object) -> set[str]:
    return {entry["name"] for entry in container.get("env", [])}


def test_every_variable_is_read_by_somebody(everything: list[Object], local: list[Object]) -> None:
    sources = "".join(p.read_text() for d in ("common", "services") for p in (ROOT / d).rglob("*.py"))
    for objects in (everything, local):
        file = tandem_yaml(objects)
        for name, template in pods(objects):
            for container in containers(template):
                text = str([container.get("args"), container.get("env")])
                for variable in environment_of(container) - {"TZ"}:
                    known = (
                        FOREIGN.fullmatch(variable)
                        or f"${{{variable}}}" in file
                        or f"$({variable})" in text
                        or f'"{variable}"' in sources
                        or (variable in ("REDIS_PASSWORD", "NATS_PASSWORD") and "_PASSWORD" in sources)
                    )
                    assert known, f"{name}: nobody reads {variable}"


def test_every_reference_is_set(everything: list[Object], local: list[Object]) -> None:
    for objects in (everything, local):
        wanted = set(re.findall(r"\$\{(\w+)\}", tandem_yaml(objects)))
        for name, template in pods(objects):
            for container in containers(template):
                known = environment_of(container) | INJECTED
                assert set(re.findall(r"\$\((\w+)\)", str(container.get("args", [])))) <= known, name
                if any("/etc/tandem/tandem.yaml" in argument for argument in container.get("args", [])):
                    assert wanted <= environment_of(container), name


@pytest.mark.parametrize("preset", PRESETS)
def test_no_right_that_is_not_asked_for(helm4: Chart, preset: str) -> None:
    objects = helm4.objects(preset)
    for name, template in pods(objects):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for container in containers(template):
            rights = container["securityContext"]
            assert "privileged" not in rights, name
            assert rights["readOnlyRootFilesystem"] is True, name
            assert rights["allowPrivilegeEscalation"] is False, name
            assert rights["capabilities"]["drop"] == ["ALL"], name
            added = rights["capabilities"].get("add", [])
            assert added == (["IPC_LOCK"] if component(template) in WORKERS and preset != "local" else []), name
            assert not container["image"].endswith(":latest"), name
            assert ":" in container["image"], name


def test_only_the_privileged_profile_is_privileged(helm4: Chart) -> None:
    objects = helm4.objects("h100-ep16", ["securityProfile=privileged"])
    for name, template in pods(objects):
        for container in containers(template):
            wanted = component(template) in WORKERS and container["name"] != "download"
            assert container["securityContext"].get("privileged", False) is wanted, name


def test_secrets_only_by_reference(helm4: Chart) -> None:
    """No value holds a password; the chart's own are random, and with the operator's there is none at all."""
    first, second = (helm4.objects("local", [f"test.timeoutSeconds={n}"]) for n in (1, 2))
    for name in ("-redis", "-nats"):
        data = [one(objects, "Secret", name)["data"]["password"] for objects in (first, second)]
        assert data[0] != data[1]
        assert len(data[0]) >= 40
    external = helm4.objects("h100-ep16", SWITCHES["external"])
    own = helm4.objects("h100-ep16", SWITCHES["own-passwords"])
    for objects in (external, own):
        assert not [o for o in objects if o["kind"] == "Secret"]
    assert not [o for o in external if o["metadata"]["name"].endswith(("-redis", "-nats"))]
    values = yaml.safe_load((ROOT / "helm/values.yaml").read_text())
    assert not [path for path, value in walk(values) if "password" in path.lower() and value and "key" not in path]


def walk(values: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(values, dict):
        return [(path, values)]
    return [leaf for key, below in values.items() for leaf in walk(below, f"{path}.{key}")]


def test_budgets_of_disruption_count_groups(helm4: Chart) -> None:
    def budget(settings: list[str], role: str) -> int:
        spec = one(helm4.objects("h100-ep128", settings), "PodDisruptionBudget", role)["spec"]
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        return int(spec["maxUnavailable"])

    assert budget([], "-decode") == 1
    assert budget([], "-scheduler") == 1
    # After two whole groups of sixteen one pod of the third may go.
    assert budget(["decode.groups=4", "decode.pdb.maxUnavailableGroups=3"], "-decode") == 33


def test_a_group_of_statefulsets_knows_its_number(helm4: Chart) -> None:
    objects = helm4.objects("h100-ep16", ["groupController=StatefulSet", "prefill.groups=2"])
    sets = [o for o in objects if o["kind"] == "StatefulSet" and "-prefill-" in o["metadata"]["name"]]
    assert len(sets) == 2
    for number, group in enumerate(sets):
        container = group["spec"]["template"]["spec"]["containers"][0]
        assert named(container["env"], "GROUP")["value"] == str(number)
        field = named(container["env"], "NODE")["valueFrom"]["fieldRef"]["fieldPath"]
        assert field == "metadata.labels['apps.kubernetes.io/pod-index']"
        assert (
            group["spec"]["selector"]["matchLabels"].items() <= group["spec"]["template"]["metadata"]["labels"].items()
        )
        assert f"prod-tandem-prefill-g{number}-0." in str(container["args"])
        assert (group["spec"]["replicas"], group["spec"]["podManagementPolicy"]) == (2, "Parallel")
    service = one(objects, "Service", "-prefill-pods")
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_file_knows_every_group_that_the_autoscaler_may_add(helm4: Chart) -> None:
    objects = helm4.objects("h100-ep16", ["autoscaler.enabled=true", "decode.autoscale.maxGroups=6"])
    assert config_of(objects).decode.parallel.groups == 6
    assert one(objects, "LeaderWorkerSet", "-decode")["spec"]["replicas"] == 1
    spare = helm4.objects("local", ["autoscaler.enabled=true", "decode.autoscale.maxGroups=3"])
    replicas = [
        o["spec"]["replicas"] for o in spare if o["kind"] == "StatefulSet" and "-decode-" in o["metadata"]["name"]
    ]
    assert replicas == [1, 0, 0]


def test_network_policy_denies_first(everything: list[Object]) -> None:
    deny = one(everything, "NetworkPolicy", "-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    labels = deny["podSelector"]["matchLabels"].items()
    for name, template in pods(everything):
        assert labels <= template["metadata"]["labels"].items(), name


def test_least_rights_of_the_autoscaler(everything: list[Object]) -> None:
    (role,) = (o for o in everything if o["kind"] == "Role")
    assert not [o for o in everything if o["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    writes = [rule for rule in role["rules"] if set(rule["verbs"]) & {"update", "patch", "create", "delete"}]
    assert all("*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"] for rule in role["rules"])
    assert all(rule.get("resourceNames") or rule["verbs"] == ["create"] for rule in writes)
    assert {resource for rule in writes for resource in rule["resources"]} == {"leaderworkersets/scale", "leases"}
    for name, template in pods(everything):
        automount = template["spec"].get("automountServiceAccountToken", True)
        assert automount is (component(template) == "autoscaler"), name


def test_scrapes_reach_every_instance(everything: list[Object]) -> None:
    for role in (*WORKERS, "scheduler", "autoscaler"):
        monitor = one(everything, "PodMonitor", f"-{role}")["spec"]
        template, container = worker(everything, role)
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        scraped = {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
        assert scraped == {p["name"] for p in container["ports"] if p["name"].startswith("metrics")}


def test_notes_name_the_next_steps(helm4: Chart) -> None:
    notes = helm4.render("local", notes=True).split("NOTES:")[-1]
    commands = [shlex.split(line) for line in notes.splitlines() if line.strip().startswith(("kubectl", "helm"))]
    assert ["helm", "test", "prod", "-n", NAMESPACE, "--logs"] in commands
    assert "bundled" in notes
    assert "networkPolicy.clients" not in notes + str(commands)
    assert not [command for command in commands if "delete" in command]
    site = ["scheduler.service.type=LoadBalancer", "groupController=StatefulSet"]
    notes = helm4.render("h100-ep16", site, notes=True).split("NOTES:")[-1]
    assert "networkPolicy.clients" in notes
    assert "tandem/group=0" in notes


def test_the_autoscaler_finds_pools_and_schedulers(everything: list[Object]) -> None:
    section = yaml.safe_load(tandem_yaml(everything))["autoscaler"]
    wanted = dict(term.split("=") for term in section["selector"].split(","))
    for role in WORKERS:
        labels = one(everything, "LeaderWorkerSet", f"-{role}")["metadata"]["labels"]
        assert wanted.items() <= labels.items()
        assert labels["app.kubernetes.io/component"] == role
        assert section[role] == {"min_groups": 1, "max_groups": 4}
    host, _, port = section["schedulers"][0].partition(":")
    service = one(everything, "Service", host.split(".")[0])
    assert host == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert service["spec"]["clusterIP"] == "None"
    assert [p["port"] for p in service["spec"]["ports"]] == [int(port)]
    (lease,) = (
        r
        for o in everything
        if o["kind"] == "Role"
        for r in o["rules"]
        if "leases" in r["resources"] and "resourceNames" in r
    )
    assert lease["resourceNames"] == [section["lease_name"]]


def test_front_doors_fetch_every_file_that_they_read(everything: list[Object]) -> None:
    sources = [*(ROOT / "services/scheduler").glob("*.py"), ROOT / "common/config/checkpoint.py"]
    read = {text for file in sources for text in re.findall(r'"(\w+\.(?:json|jinja|txt|model))"', file.read_text())}
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= read
    for role in ("scheduler", "autoscaler", "doctor"):
        template, _ = worker(everything, role)
        args = named(template["spec"]["initContainers"], "download")["args"]
        patterns = [args[i + 1] for i, argument in enumerate(args) if argument == "--only"]
        assert not [name for name in read if not any(fnmatchcase(name, pattern) for pattern in patterns)]
        assert not any(fnmatchcase("model-00001-of-000163.safetensors", pattern) for pattern in patterns)
