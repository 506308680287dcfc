"""The HTTP end that Prometheus scrapes."""

from prometheus_client import CollectorRegistry, start_http_server

from common.errors import ConfigError


class MetricsExporter:
    """Serves one registry at ``http://host:port/metrics`` from its own thread until closed. Port 0 takes a free one."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(f"metrics port {host}:{port}: {error.strerror}") from error

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
