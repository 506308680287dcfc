"""One answer for all instances of a pod: who supervises it asks one port, and none must hide behind another."""

from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from common.telemetry.exporter import Probes

_TIMEOUT_S = 2.0  # below that of the supervisor's own probe


def pod_probes(addresses: Sequence[str]) -> Probes:
    """Live, or ready, when every instance is.

    Args:
        addresses: host:port at which each instance answers for itself.
    """
    return Probes(
        live=lambda: all(_says_yes(address, "/healthz") for address in addresses),
        ready=lambda: all(_says_yes(address, "/readyz") for address in addresses),
    )


def _says_yes(address: str, path: str) -> bool:
    """Asked directly: a proxy that the pod's environment names is for the world outside."""
    with closing(HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):  # no, not yet, or not any more
            return False
