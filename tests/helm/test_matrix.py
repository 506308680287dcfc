"""All presets times all switches, under both versions of Helm, against both versions of Kubernetes."""

import pytest

from tests.helm.chart import PRESETS, Chart
from tests.helm.objects import KUBERNETES, faults_of, kinds, one
from tests.helm.test_presets import config_of

EXTERNAL = [
    f"{name}.{setting}"
    for name in ("redis", "nats")
    for setting in ("mode=external", f"external.urlSecret.name=our-{name}")
]
SWITCHES: dict[str, list[str]] = {
    "statefulset": ["groupController=StatefulSet"],
    "leaderworkerset": ["groupController=LeaderWorkerSet"],
    "external": [*EXTERNAL, "tls.caSecret.name=our-ca"],
    "autoscaler": ["autoscaler.enabled=true", "monitoring.podMonitor.enabled=true"],
    "statefulset-autoscaler": ["autoscaler.enabled=true", "groupController=StatefulSet", "decode.groups=2"],
    "monitoring": [
        "monitoring.podMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.rules.labels.release=prom",
    ],
    "bare": [
        "networkPolicy.enabled=false", "doctor.hook=false", "doctor.initContainer=false",
        "monitoring.dashboards.enabled=false", "scheduler.autoscaling.enabled=false", "scheduler.pdb.enabled=false",
        "decode.pdb.enabled=false", "prefill.pdb.enabled=false",
    ],
    "prefill-only": ["decode.enabled=false"],
    "decode-only": ["prefill.enabled=false"],
    "prefill-scaled": ["decode.enabled=false", "autoscaler.enabled=true"],
    "many-groups": ["prefill.groups=3", "decode.groups=2", "decode.pdb.maxUnavailableGroups=2"],
    "scheduler": [
        "scheduler.service.type=LoadBalancer", "scheduler.service.annotations.a=b", "scheduler.nodeSelector.pool=cpu",
        "scheduler.tolerations[0].operator=Exists", "scheduler.podLabels.x=y", "scheduler.podAnnotations.x=y",
        "scheduler.extraEnv[0].name=TZ", "scheduler.extraEnv[0].value=UTC", "images.pullSecrets[0]=registry",
        "scheduler.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=zone",
        "scheduler.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=Exists",
    ],
    "workers": [
        "decode.topologyKey=rack", "decode.nodeSelector.pool=gpu", "decode.podLabels.x=y", "decode.podAnnotations.x=y",
        "decode.extraEnv[0].name=TZ", "decode.extraEnv[0].value=UTC", "decode.gpu.runtimeClassName=nvidia",
        "jitCache.kind=hostPath", "images.gpu.digest=sha256:" + "a" * 64, "fullnameOverride=llm",
    ],
    "jit-claim": ["jitCache.kind=pvc", "jitCache.claimName=jit"],
    "own-passwords": ["redis.passwordSecret.name=ours", "nats.passwordSecret.name=ours", "nameOverride=engine"],
    "digest": ["images.cpu.digest=sha256:" + "b" * 64],
}  # fmt: skip
# Switches that a CPU preset cannot take.
GPU_SWITCHES: dict[str, list[str]] = {
    "exclusive": ["groupController=LeaderWorkerSet", "decode.exclusiveTopology=rack"],
    "rdma": [
        "rdma.enabled=true", "securityProfile=rdma", "rdma.resources.rdma/hca=8", "rdma.hcas={mlx5_0,mlx5_1}",
        "rdma.gidIndex=3", "rdma.trafficClass=106", "rdma.interface=eth0", "rdma.networks=roce-0",
        "rdma.env.UCX_TLS=rc",
    ],
    "privileged": ["securityProfile=privileged", "rdma.enabled=true"],
    "download-claim": [
        "model.download.enabled=true", "model.download.url=https://models.internal/v3",
        "model.download.tokenSecret.name=token", "model.download.caSecret.name=ca", "model.store.claimName=models",
    ],
    "download-host": ["model.download.enabled=true", "model.download.url=http://m/v3", "model.store.kind=hostPath"],
    "download-scratch": ["model.download.enabled=true", "model.download.url=http://m/v3", "model.store.kind=scratch"],
    "host-path": ["model.store.kind=hostPath", "model.store.hostPath=/data"],
}  # fmt: skip


def cells() -> list[tuple[str, str]]:
    return [
        (preset, switch)
        for preset in PRESETS
        for switch in (SWITCHES if preset == "local" else SWITCHES | GPU_SWITCHES)
    ]


@pytest.mark.helm
@pytest.mark.parametrize(("preset", "switch"), cells())
def test_every_switch_on_every_preset(chart: Chart, preset: str, switch: str) -> None:
    objects = chart.objects(preset, (SWITCHES | GPU_SWITCHES)[switch])
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
    config_of(objects)


@pytest.mark.helm
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("switch", ["autoscaler", "external"])
def test_lint_under_switches(chart: Chart, preset: str, switch: str) -> None:
    values = [part for setting in SWITCHES[switch] for part in ("--set", setting)]
    chart.lint("-f", f"helm/values-{preset}.yaml", *values)


@pytest.mark.parametrize(
    "switch", ["statefulset-autoscaler", "prefill-scaled", "rdma", "external", "download-claim", "monitoring"]
)
def test_the_switches_that_change_most(helm4: Chart, switch: str) -> None:
    """The short form of the matrix."""
    objects = helm4.objects("h100-ep16", (SWITCHES | GPU_SWITCHES)[switch])
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
    config_of(objects)


def test_both_versions_of_helm_render_the_same(helm_binaries: dict[str, object]) -> None:
    settings = [*SWITCHES["own-passwords"], *SWITCHES["autoscaler"], "monitoring.rules.enabled=true"]
    three, four = (Chart(helm_binaries[name]).objects("h100-ep16", settings) for name in ("helm3", "helm4"))  # type: ignore[arg-type]
    assert sorted(map(str, three)) == sorted(map(str, four))


def test_the_schemas_do_refuse(helm4: Chart) -> None:
    """The checks above mean something: a misspelt field anywhere is a fault."""
    objects = helm4.objects("h100-ep16", SWITCHES["monitoring"])
    assert kinds(objects)["PrometheusRule"] == 2
    for kind, name in (("Deployment", "-scheduler"), ("LeaderWorkerSet", "-decode"), ("PodMonitor", "-decode")):
        broken = one(objects, kind, name)
        broken["spec"]["replica"] = 3
        assert faults_of(broken, KUBERNETES[0]), kind
    pod = one(objects, "LeaderWorkerSet", "-prefill")
    pod["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["port"] = []
    assert faults_of(pod, KUBERNETES[1])
