"""One answer for all instances of a pod: who supervises it asks one port, and none must hide behind another."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from common.telemetry.exporter import Probes

_TIMEOUT_S = 2.0  # below that of the supervisor's own probe
_SAID_BYTES = 1024


def pod_probes(addresses: Sequence[str]) -> Probes:
    """Live, or ready, when every instance is.

    Args:
        addresses: host:port at which each instance answers for itself.
    """
    return Probes(
        fault=lambda: next(_refusals(addresses, "/healthz"), None),
        ready=lambda: next(_refusals(addresses, "/readyz"), None) is None,
    )


def _refusals(addresses: Sequence[str], path: str) -> Iterator[str]:
    """Who does not say yes, and what it says. Asked one after the other, as far as somebody wants to know."""
    for address in addresses:
        if (said := _refusal(address, path)) is not None:
            yield f"the instance at {address}: {said}"


def _refusal(address: str, path: str) -> str | None:
    """Asked directly: a proxy that the pod's environment names is for the world outside."""
    with closing(HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return None if reply.status == 200 else reply.read(_SAID_BYTES).decode(errors="replace").strip()
        except (OSError, HTTPException) as error:  # not yet, or not any more
            return f"no answer: {error or type(error).__name__}"
