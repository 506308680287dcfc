"""Which replica acts: a coordination.k8s.io Lease, held by renewing it.

Clocks of machines are not compared: a lease has lapsed when its record did not change for its whole duration by the
watcher's own clock. The holder stops before that by its own: `leads` is false from `lease_duration_s - api_timeout_s`
after it sent its last renewal that succeeded, so a write that it began in time ends before anybody else may begin.
"""

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from common.clock import Clock
from common.config.autoscaler import AutoscalerConfig
from common.errors import TandemError
from common.telemetry.logs import get_log
from services.autoscaler.kubernetes_api import LEASES, KubernetesApi, Object, ObjectChanged, ObjectMissing

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lease record, and since when it has been the same."""

    record: tuple[object, ...]
    since_s: float


class Leadership:
    """One replica's part in the election."""

    def __init__(self, api: KubernetesApi, identity: str, config: AutoscalerConfig, clock: Clock) -> None:
        self._api = api
        self._identity = identity
        self._config = config
        self._clock = clock
        self._held_until_s = float("-inf")
        self._seen = _Seen((), float("-inf"))
        self._told = False
        self._calling = threading.Lock()  # a step that was cancelled still ends in its thread
        self._resigned = False

    def leads(self) -> bool:
        return self._clock.now_s() < self._held_until_s

    async def run(self) -> None:
        """Until cancelled; then call `resign`."""
        while True:
            try:
                await asyncio.to_thread(self.step)
            except TandemError as error:
                log.warning("lease not renewed" if self.leads() else "lease not asked for", why=str(error))
            if self.leads() != self._told:
                self._told = not self._told
                log.info("leads" if self._told else "leads no more", identity=self._identity)
            await asyncio.sleep(self._config.lease_renew_s)

    def step(self) -> None:
        """Renew the lease, take it when nobody holds it, or look who does."""
        with self._calling:
            if not self._resigned:
                self._step()

    def _step(self) -> None:
        sent_s = self._clock.now_s()
        try:
            lease = self._api.get(LEASES, self._config.lease_name)
        except ObjectMissing:
            self._take(None, sent_s)
            return
        spec = lease.get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen.record:
            self._seen = _Seen(record, sent_s)
        lapsed = sent_s - self._seen.since_s >= float(spec.get("leaseDurationSeconds") or 0)
        if spec.get("holderIdentity") in (self._identity, "", None) or lapsed:
            self._take(lease, sent_s)
        else:
            self._held_until_s = float("-inf")

    def resign(self) -> None:
        """Give the lease back, so that another need not wait for it to lapse. This replica never leads again."""
        with self._calling:
            self._resigned = True
            if not self.leads():
                return
            self._held_until_s = float("-inf")
            lease = self._api.get(LEASES, self._config.lease_name)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                self._api.replace(LEASES, self._config.lease_name, lease)

    def _take(self, lease: Object | None, sent_s: float) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (lease or {}).get("spec") or {}
        ours = before.get("holderIdentity") == self._identity
        changes = int(before.get("leaseTransitions") or 0) + (0 if ours or lease is None else 1)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._config.lease_duration_s),
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
        try:
            if lease is None:
                metadata = {"name": self._config.lease_name}
                body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
                self._api.create(LEASES, body)
            else:
                self._api.replace(LEASES, self._config.lease_name, {**lease, "spec": spec})
        except ObjectChanged:  # another was faster; the next step sees who
            self._held_until_s = float("-inf")
            return
        self._held_until_s = sent_s + self._config.lease_duration_s - self._config.api_timeout_s
