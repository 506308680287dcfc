"""The HTTP end for those who run a service: ``/metrics`` for Prometheus, ``/healthz``, ``/readyz``, ``/version``."""

import json
import platform
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from common.errors import ConfigError
from common.telemetry.listener import listen
from common.version import VERSION

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_PLAIN = ("Content-Type", "text/plain; charset=utf-8")
_JSON = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True)
class Probes:
    """What a supervisor may ask. Called from the exporter's threads, so they answer from what is at hand.

    Attributes:
        fault: why the process makes no progress, when only a restart helps; None while it is live.
        ready: whether new requests are welcome; false while it drains.
    """

    fault: Callable[[], str | None]
    ready: Callable[[], bool]


class MetricsExporter:
    """Serves one registry and two probes from threads of its own until closed. Port 0 takes a free one.

    It does not depend on the service's event loop: one that is stuck still gets the answer that it is not live.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, probes: Probes) -> None:
        self._metrics = make_wsgi_app(registry)
        self._probes = probes
        try:
            self._server = _Server(listen(host, port))
        except OSError as error:
            raise ConfigError(f"metrics port {host}:{port}: {error.strerror}") from error
        self._server.set_app(self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return self._metrics(environ, start)
            case "/healthz":
                fault = self._probes.fault()
                return _verdict(start, fault is None, "live" if fault is None else f"not live: {fault}")
            case "/readyz":
                ready = self._probes.ready()
                return _verdict(start, ready, "ready" if ready else "not ready")
            case "/version":
                start("200 OK", [_JSON])
                return [json.dumps(version_facts()).encode()]
        start("404 Not Found", [_PLAIN])
        return [b"/metrics /healthz /readyz /version\n"]


def version_facts() -> dict[str, str]:
    """What ``/version`` answers."""
    return {"name": "tandem-serve", "version": VERSION, "python": platform.python_version()}


def _verdict(start: "StartResponse", holds: bool, text: str) -> Iterable[bytes]:
    start("200 OK" if holds else "503 Service Unavailable", [_PLAIN])
    return [f"{text}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    """Over a socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], _Quiet, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    """Probes come every few seconds; they are no news."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
