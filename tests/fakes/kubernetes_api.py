"""An API server double that speaks the real HTTP API to the real client: get, list, watch, create, replace, scale.

Resource versions count up over all objects; a write with an old one is 409; a watch from before `compact()` gets an
ERROR event with 410, as from a real server; `fail(status, times)` lets the next requests end with that status.
"""

import json
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

REASONS = {404: "NotFound", 409: "Conflict", 410: "Expired", 403: "Forbidden", 500: "InternalError", 503: "Unavailable"}


class FakeKubernetes:
    def __init__(self):
        self.lock = threading.Condition()
        self.version = 100
        self.oldest = 0  # changes up to this version are forgotten
        self.objects = {}  # (plural, name) -> object
        self.changes = []  # (version, plural, kind, object)
        self.failures = []  # (status, ending of the path)
        self.requests = []  # (method, path without query)
        self.watches = []  # plurals
        self.before_write: Callable[[str], None] = lambda _path: None
        self.down = False
        self.closing = False
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_owner = owner

            def log_message(self, *_):
                pass

            def do_GET(self):
                owner.serve(self, "GET")

            def do_POST(self):
                owner.serve(self, "POST")

            def do_PUT(self):
                owner.serve(self, "PUT")

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_):
                pass

        self.http = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        with self.lock:
            self.closing = True
            self.lock.notify_all()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def configuration(self):
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.http.server_port}"
        return configuration

    # what tests do to it

    def put(self, plural, body):
        """Create or overwrite an object, as another client would."""
        with self.lock:
            body = deepcopy(body)
            kind = "MODIFIED" if (plural, body["metadata"]["name"]) in self.objects else "ADDED"
            self._store(plural, kind, body)

    def get(self, plural, name):
        with self.lock:
            return deepcopy(self.objects[plural, name])

    def edit(self, plural, name, change):
        with self.lock:
            body = deepcopy(self.objects[plural, name])
            change(body)
            self._store(plural, "MODIFIED", body)

    def delete(self, plural, name):
        with self.lock:
            body = self.objects.pop((plural, name))
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.changes.append((self.version, plural, "DELETED", body))
            self.lock.notify_all()

    def compact(self):
        """Forget all changes so far and end the watches that run."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.changes = []
            self.lock.notify_all()

    def fail(self, status, times=1, ending=""):
        """The next requests whose path ends so."""
        with self.lock:
            self.failures += [(status, ending)] * times

    def count(self, method, ending):
        with self.lock:
            return sum(m == method and path.endswith(ending) for m, path in self.requests)

    # the HTTP API

    def serve(self, handler, method):
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        with self.lock:
            self.requests.append((method, url.path))
            if self.down:
                handler.close_connection = True
                return
            failing = next((one for one in self.failures if url.path.endswith(one[1])), None)
            if failing is not None:
                self.failures.remove(failing)
                self._status(handler, failing[0])
                return
        if method != "GET":
            self.before_write(url.path)
        _, apis, _group, _version, namespaces, _namespace, plural, *rest = url.path.split("/")
        assert (apis, namespaces) == ("apis", "namespaces")
        if method == "GET" and not rest:
            if query.get("watch") in ("true", "True"):
                with self.lock:
                    self.watches.append(plural)
                self._watch(handler, plural, query)
            else:
                self._list(handler, plural, query)
            return
        with self.lock:
            self._object(handler, method, plural, rest, body)

    def _object(self, handler, method, plural, rest, body):
        name = rest[0] if rest else body["metadata"]["name"]
        known = self.objects.get((plural, name))
        if method == "POST":
            if known is not None:
                self._status(handler, 409)
                return
            self._store(plural, "ADDED", body)
            self._answer(handler, 201, body)
            return
        if known is None:
            self._status(handler, 404)
            return
        scaling = rest[1:] == ["scale"]
        if method == "PUT":
            given = body["metadata"].get("resourceVersion")
            if given and given != known["metadata"]["resourceVersion"]:
                self._status(handler, 409)
                return
            if scaling:
                known = deepcopy(known)
                known["spec"]["replicas"] = body["spec"]["replicas"]
            else:
                known = body
            self._store(plural, "MODIFIED", known)
        self._answer(handler, 200, self._scale(known) if scaling else known)

    def _scale(self, known):
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {key: known["metadata"][key] for key in ("name", "resourceVersion")},
            "spec": {"replicas": known["spec"].get("replicas", 1)},
            "status": {"replicas": known.get("status", {}).get("replicas", 0)},
        }

    def _list(self, handler, plural, query):
        with self.lock:
            items = [one for (p, _), one in sorted(self.objects.items()) if p == plural and _matches(one, query)]
            self._answer(handler, 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items})

    def _watch(self, handler, plural, query):
        after, end_s = int(query["resourceVersion"]), time.monotonic() + float(query.get("timeoutSeconds", 60))
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            with self.lock:
                gone = after < self.oldest
                new = [change for change in self.changes if change[0] > after and change[1] == plural]
                if not new and not gone and not self.closing and not self.down and time.monotonic() < end_s:
                    self.lock.wait(min(0.1, max(0.0, end_s - time.monotonic())))
                    continue
                if self.down:
                    handler.close_connection = True
                    return
            if gone:
                self._chunk(handler, {"type": "ERROR", "object": _status_body(410)})
            for version, _, kind, one in new if not gone else ():
                after = version
                if _matches(one, query):
                    self._chunk(handler, {"type": kind, "object": one})
            if gone or self.closing or time.monotonic() >= end_s:
                handler.wfile.write(b"0\r\n\r\n")
                return

    def _chunk(self, handler, event):
        line = json.dumps(event).encode() + b"\n"
        handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        handler.wfile.flush()

    def _store(self, plural, kind, body):
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[plural, body["metadata"]["name"]] = deepcopy(body)
        self.changes.append((self.version, plural, kind, deepcopy(body)))
        self.lock.notify_all()

    def _status(self, handler, status):
        self._answer(handler, status, _status_body(status))

    def _answer(self, handler, status, body):
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def _status_body(status):
    reason = REASONS.get(status, "Unknown")
    return {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": f"test: {reason}"}


def _matches(one, query):
    labels = one["metadata"].get("labels", {})
    wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part]
    return all(labels.get(name) == value for name, value in wanted)


def leader_worker_set(role, replicas, *, ready=None, size=1):
    labels = {"app.kubernetes.io/part-of": "tandem", "app.kubernetes.io/component": role}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": f"tandem-{role}", "labels": labels},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": {"metadata": {"labels": labels}, "spec": {}}},
        },
        "status": {"readyReplicas": replicas if ready is None else ready},
    }


def stateful_set(role, group, replicas, *, nodes=1):
    labels = {"app.kubernetes.io/part-of": "tandem", "app.kubernetes.io/component": role, "tandem/group": str(group)}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"tandem-{role}-{group}", "labels": labels, "annotations": {"tandem/nodes": str(nodes)}},
        "spec": {"replicas": replicas, "template": {"metadata": {"labels": labels}}},
        "status": {"readyReplicas": replicas},
    }


def disruption_budget(role, *, allowed=1, expected=1, **spec):
    selector = {"matchLabels": {"app.kubernetes.io/component": role}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"tandem-{role}", "labels": {"app.kubernetes.io/part-of": "tandem"}},
        "spec": {"selector": selector, **spec},
        "status": {"disruptionsAllowed": allowed, "expectedPods": expected},
    }
