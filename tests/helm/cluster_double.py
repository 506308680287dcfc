"""What the autoscaler's pod asks of the API server, held against the rights that the chart gives it."""

import re
from pathlib import Path

import yaml

from tests.fakes.kubernetes_api import FakeKubernetes
from tests.helm.objects import Object

_VERBS = {"GET": "get", "PUT": "update", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
Right = tuple[str, str]  # resource with its subresource, verb


def put_pools(kubernetes: FakeKubernetes, objects: list[Object], missing: str) -> None:
    """Pools and budgets as they are rendered, all pods ready, but one group asked for none."""
    for o in objects:
        if o["kind"] == "StatefulSet":
            replicas = 0 if o["metadata"]["name"] == missing else o["spec"]["replicas"]
            kubernetes.put(
                "statefulsets", o | {"spec": o["spec"] | {"replicas": replicas}, "status": {"readyReplicas": replicas}}
            )
        elif o["kind"] == "PodDisruptionBudget":
            kubernetes.put("poddisruptionbudgets", o)


def kubeconfig_of(kubernetes: FakeKubernetes, directory: Path) -> Path:
    cluster = {"cluster": {"server": kubernetes.configuration().host}, "name": "c"}
    context = {"context": {"cluster": "c", "user": "u"}, "name": "x"}
    document = {"clusters": [cluster], "contexts": [context], "current-context": "x"}
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(document | {"users": [{"name": "u", "user": {}}]}))
    return file


def asked_rights(kubernetes: FakeKubernetes) -> set[Right]:
    """By the requests that came."""
    found: set[Right] = set()
    with kubernetes.lock:
        requests = set(kubernetes.requests)
        watched = set(kubernetes.watches)
    for method, path in requests:
        resource, name, sub = re.fullmatch(
            r"/apis/[^/]+/[^/]+/namespaces/[^/]+/([^/]+)(?:/([^/]+)(/\w+)?)?", path
        ).groups()  # type: ignore[union-attr]
        verb = "list" if method == "GET" and name is None else _VERBS[method]
        found.add((f"{resource}{sub or ''}", verb))
    return found | {(plural, "watch") for plural in watched}


def granted_rights(objects: list[Object]) -> set[Right]:
    (role,) = (o for o in objects if o["kind"] == "Role")
    return {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
