"""Membership: each instance keeps a record with a time to live; whoever lists them sees who should be there."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

from redis.asyncio import Redis

from common.errors import DependencyUnavailable, WorkerLost
from common.state.connect import script_text, text, translated
from common.state.keys import Keys, hex_incarnation
from common.telemetry.logs import get_log

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What an instance says of itself. `draining`: it takes no new work."""

    instance: str
    role: str
    group: str
    address: str
    incarnation: int
    draining: bool = False


class WorkerLeases:
    """All leases of a cluster. Every call may raise DependencyUnavailable.

    A record that cannot be read hides its instance and nobody else: it is logged once for each reason, however often
    it is listed, and `on_unreadable` is called each time.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._unreadable: dict[str, str] = {}  # name -> why, as it was logged
        self.on_unreadable: Callable[[], None] = lambda: None
        self._put = redis.register_script(script_text("lease_put.lua"))
        self._end = redis.register_script(script_text("lease_end.lua"))

    async def put(self, record: WorkerRecord, ttl_s: float) -> None:
        """Take or renew the lease.

        Raises:
            WorkerLost: a later incarnation of the instance holds it.
        """
        incarnation = hex_incarnation(record.incarnation)
        told = json.dumps(asdict(record) | {"incarnation": incarnation})
        ttl_ms = round(ttl_s * 1000)
        with translated("worker lease"):
            taken = await self._put(
                keys=self._names(record.instance), args=[told, incarnation, ttl_ms, record.instance]
            )
        if not taken:
            raise WorkerLost(f"a later incarnation of {record.instance} holds its lease")

    async def end(self, record: WorkerRecord) -> None:
        """Give the lease back, unless another incarnation holds it."""
        arguments = [hex_incarnation(record.incarnation), record.instance]
        with translated("end of worker lease"):
            await self._end(keys=self._names(record.instance), args=arguments)

    async def current(self) -> list[WorkerRecord]:
        """All instances whose lease runs, by name."""
        with translated("list of worker leases"):
            names = sorted(text(name) for name in await self._redis.smembers(self._keys.workers))
            if not names:
                return []
            records = await self._redis.mget([self._keys.worker_prefix + name for name in names])
            lapsed = [name for name, record in zip(names, records, strict=True) if record is None]
            if lapsed:
                await self._redis.srem(self._keys.workers, *lapsed)
        return self._read({name: told for name, told in zip(names, records, strict=True) if told is not None})

    def _read(self, told: Mapping[str, bytes | str]) -> list[WorkerRecord]:
        read, unreadable = [], {}
        for name, record in told.items():
            try:
                read.append(_record(name, record))
            except (ValueError, TypeError, KeyError) as error:
                unreadable[name] = f"{type(error).__name__}: {error}"
                self.on_unreadable()
        for name, why in unreadable.items():
            if self._unreadable.get(name) != why:
                log.warning("worker record unreadable", name=name, why=why)
        self._unreadable = unreadable
        return read

    def _names(self, instance: str) -> list[str]:
        return [self._keys.worker_prefix + instance, self._keys.workers]


class LeaseKeeper:
    """Renews one instance's lease at a third of its time to live."""

    def __init__(self, leases: WorkerLeases, record: WorkerRecord, ttl_s: float) -> None:
        self._leases = leases
        self._ttl_s = ttl_s
        self.record = record

    async def update(self, record: WorkerRecord) -> None:
        """Change what is said from now on, and say it at once.

        Raises:
            DependencyUnavailable: it is said at the next renewal.
            WorkerLost: a later incarnation holds the lease.
        """
        self.record = record
        await self._leases.put(record, self._ttl_s)

    async def run(self) -> None:
        """Until cancelled. Redis' absence is waited out.

        Raises:
            WorkerLost: a later incarnation holds the lease; this one is to end.
        """
        while True:
            try:
                await self._leases.put(self.record, self._ttl_s)
            except DependencyUnavailable as error:
                log.warning("worker lease not renewed", why=str(error))
            await asyncio.sleep(self._ttl_s / 3)


def _record(name: str, told: bytes | str) -> WorkerRecord:
    """Fields that are not known are a later version's.

    Raises:
        ValueError, TypeError, KeyError: it is no record.
    """
    given = json.loads(told)
    known = {field.name: given[field.name] for field in fields(WorkerRecord) if field.name in given}
    for field, value in known.items():
        wanted = bool if field == "draining" else str
        if not isinstance(value, wanted):
            raise TypeError(f"{field} = {value!r}: must be {wanted.__name__}")
    if known.get("instance") != name:
        raise ValueError(f"instance = {known.get('instance')!r}: must be {name!r}")
    return WorkerRecord(**(known | {"incarnation": int(given["incarnation"], 16)}))
