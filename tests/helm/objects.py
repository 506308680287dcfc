"""Rendered objects: checked against the schemas of the oldest and the newest supported Kubernetes, and taken apart."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

Object = dict[str, Any]

KUBERNETES = ("1.28", "1.37")  # oldest, as Chart.yaml says, and newest
SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM = {"LeaderWorkerSet": "leaderworkerset-v1", "PodMonitor": "podmonitor-v1", "PrometheusRule": "prometheusrule-v1"}
COUNTS: Counter[str] = Counter()  # what this run has done, for the last line
_seen: set[tuple[str, str]] = set()


def faults_of(object_: Object, version: str) -> list[str]:
    """What the strict schemas of a Kubernetes minor version say against an object."""
    COUNTS["objects"] += 1
    key = (version, hashlib.sha256(json.dumps(object_, sort_keys=True).encode()).hexdigest())
    if key in _seen:
        return []
    name = f"{object_['kind']} {object_['metadata']['name']}"
    found = [
        f"{version} {name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _validator(version, object_["apiVersion"], object_["kind"]).iter_errors(object_)
    ]
    if object_["kind"] == "LeaderWorkerSet":
        # Its template is a pod template like that of a ReplicaSet.
        found += faults_of(_as_replica_set(object_), version)
    if not found:
        _seen.add(key)
    return found


def _as_replica_set(object_: Object) -> Object:
    template = object_["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "template"}, "spec": spec}


@cache
def _definitions(version: str) -> Registry[Any]:
    contents = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
    return (Resource.from_contents(contents) @ Registry()).crawl()  # type: ignore[no-any-return]


@cache
def _validator(version: str, api_version: str, kind: str) -> Draft202012Validator:
    if kind in CUSTOM:
        return Draft202012Validator(json.loads((SCHEMAS / f"{CUSTOM[kind]}.json").read_text()))
    group, _, minor = api_version.rpartition("/")
    short = f"{group.split('.')[0]}-{minor}" if group else minor
    path = f"kubernetes-json-schema/v{version}.0-local-strict/{kind.lower()}-{short}.json"
    contents = schema_contents(path, version)
    return Draft202012Validator(contents, registry=Resource.from_contents(contents) @ _definitions(version))


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The object of this kind whose name ends so."""
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name))
    return found


def kinds(objects: list[Object]) -> Counter[str]:
    return Counter(o["kind"] for o in objects)


def template_of(object_: Object) -> Object | None:
    """The pod template of a workload; a bare pod is its own."""
    match object_["kind"]:
        case "LeaderWorkerSet":
            return dict(object_["spec"]["leaderWorkerTemplate"]["workerTemplate"])
        case "Deployment" | "StatefulSet" | "Job":
            return dict(object_["spec"]["template"])
        case "Pod":
            return object_
    return None


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and template of everything that runs."""
    for object_ in objects:
        if (template := template_of(object_)) is not None:
            yield object_["metadata"]["name"], template


def containers(template: Object) -> list[Object]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def component(template: Object) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])
