"""One answer for all instances of a pod: who supervises it asks one port, and none must hide behind another."""

import urllib.request
from collections.abc import Sequence

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
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except OSError:  # no, not yet, or not any more
        return False
