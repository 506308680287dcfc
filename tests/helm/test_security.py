"""The Pod Security Standards, as far as they speak of what the chart writes, over every rendered pod."""

import pytest

from tests.helm.chart import PRESETS, Chart
from tests.helm.objects import Object, component, containers, pods

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SMALL = ["rdma.enabled=false", "securityProfile=restricted"]


def against_restricted(template: Object) -> set[str]:
    """What of a pod the standard `restricted` refuses; by field."""
    spec = template["spec"]
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)}
    found |= (
        {f"volumes.{kind}" for v in spec["volumes"] for kind in set(v) - {"name"} - VOLUMES}
        if "volumes" in spec
        else set()
    )
    pod = spec["securityContext"]
    if pod.get("seccompProfile") not in ({"type": "RuntimeDefault"}, {"type": "Localhost"}):
        found.add("seccompProfile")
    if pod.get("runAsNonRoot") is not True or pod.get("runAsUser") == 0:
        found.add("runAsNonRoot")
    for container in containers(template):
        rights = container["securityContext"]
        if rights.get("privileged"):
            found.add("privileged")
        if rights.get("allowPrivilegeEscalation") is not False:
            found.add("allowPrivilegeEscalation")
        capabilities = rights.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            found.add("capabilities")
        found |= {"hostPort" for port in container.get("ports", []) if port.get("hostPort")}
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_the_restricted_profile_is_the_restricted_standard(helm4: Chart, preset: str) -> None:
    settings = [*SMALL, "autoscaler.enabled=true"]
    assert {name: bad for name, t in pods(helm4.objects(preset, settings)) if (bad := against_restricted(t))} == {}


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (["securityProfile=rdma"], {"capabilities"}),
        (["securityProfile=privileged"], {"privileged", "allowPrivilegeEscalation", "capabilities"}),
        ([*SMALL, "jitCache.kind=hostPath"], {"volumes.hostPath"}),
        ([*SMALL, "model.store.kind=hostPath"], {"volumes.hostPath"}),
    ],
)
def test_what_the_guide_says_needs_more(helm4: Chart, settings: list[str], refused: set[str]) -> None:
    bad = {component(t): against_restricted(t) for _, t in pods(helm4.objects("h100-ep16", settings))}
    assert bad["prefill"] == bad["decode"] == refused
    assert all(found <= {"volumes.hostPath"} for role, found in bad.items() if role not in ("prefill", "decode"))


def test_openshift_may_choose_the_user(helm4: Chart) -> None:
    for name, template in pods(helm4.objects("h100-ep16", ["runAsUser=0"])):
        assert set(template["spec"]["securityContext"]) == {"runAsNonRoot", "seccompProfile"}, name


def test_gated_clusters_get_what_they_ask_for(helm4: Chart) -> None:
    """Mirrors, pull secrets, taints, priorities and gang schedulers reach every pod that they are for."""
    settings = [
        "images.cpu.repository=mirror:5000/tandem", "images.gpu.repository=mirror:5000/tandem",
        "autoscaler.enabled=true", "images.pullSecrets[0]=mirror",
        "decode.priorityClassName=high", "decode.schedulerName=volcano",
        "decode.tolerations[0].key=reserved", "decode.tolerations[0].operator=Exists",
        "scheduler.priorityClassName=high",
    ]  # fmt: skip
    for name, template in pods(helm4.objects("h100-ep16", settings)):
        spec = template["spec"]
        assert spec["imagePullSecrets"] == [{"name": "mirror"}], name
        assert all(container["image"].startswith("mirror:5000/tandem:") for container in containers(template)), name
        decode = component(template) == "decode"
        assert (spec.get("schedulerName") == "volcano") is decode, name
        assert (spec.get("tolerations") == [{"key": "reserved", "operator": "Exists"}]) is decode, name
        assert (spec.get("priorityClassName") == "high") is (decode or component(template) == "scheduler"), name
