"""As much of an API server as `helm template --dry-run=server` asks for what is installed already."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.helm.objects import Object


@contextmanager
def live_cluster(installed: list[Object], known: list[Object], namespace: str, directory: Path) -> Iterator[Path]:
    """The kubeconfig of a cluster.

    Args:
        installed: objects of this namespace, the only ones that it has.
        known: objects whose kinds it knows.
    """
    answers = _discovery(known) | {_path(o, namespace): o for o in installed}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            code = 200 if body else 404
            data = json.dumps(
                body or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            ).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        document = {"clusters": [cluster], "contexts": [context], "current-context": "x", "users": [{"name": "u"}]}
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(document | {"apiVersion": "v1", "kind": "Config"}))
        yield kubeconfig
        server.shutdown()
        thread.join()


def _path(o: Object, namespace: str) -> str:
    return f"{_root(o['apiVersion'])}/namespaces/{namespace}/{_plural(o['kind'])}/{o['metadata']['name']}"


def _root(version: str) -> str:
    return f"/{'apis' if '/' in version else 'api'}/{version}"


def _plural(kind: str) -> str:
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")


def _discovery(known: list[Object]) -> dict[str, Object]:
    kinds = {(o["apiVersion"], o["kind"]) for o in known}
    versions = {version for version, _ in kinds}
    found: dict[str, Object] = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}
                for name, version in sorted(tuple(one.split("/")) for one in versions if "/" in one)
            ],
        },
    }
    for version in versions:
        resources = [
            {"name": _plural(kind), "kind": kind, "namespaced": True, "verbs": ["get"]}
            for of, kind in kinds
            if of == version
        ]
        found[_root(version)] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return found
