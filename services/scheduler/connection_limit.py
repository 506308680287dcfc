"""How many HTTP connections a replica holds at once, so that they cannot take the descriptors of everything else."""

import math
import resource
import time

from prometheus_client import Counter

from common.telemetry.logs import get_log

log = get_log(__name__)

_MOST = 8192  # requests of a replica are at most 4,096, so who is one too many still hears so from admission
_SAY_EVERY_S = 10.0


class ConnectionLimit:
    """Half of the descriptors that the process may open, at most 8,192: the rest is for gRPC, NATS, Redis and probes.

    Args:
        refused: counts the connections that came when there were as many.
    """

    def __init__(self, refused: Counter) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // 2)
        self._refused = refused
        self._open = 0
        self._said_s = -math.inf

    def take(self) -> bool:
        """False: there are as many as may be. Else `give_back` is owed."""
        if self._open < self.most:
            self._open += 1
            return True
        self._refused.inc()
        now_s = time.monotonic()
        if now_s >= self._said_s + _SAY_EVERY_S:  # a flood must not become one of lines
            self._said_s = now_s
            log.warning("no more HTTP connections are taken", open=self._open)
        return False

    def give_back(self) -> None:
        self._open -= 1
