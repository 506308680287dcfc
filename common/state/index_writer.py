"""The writing side of the prefix index: an instance is the only writer of its own set."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from common.errors import DependencyUnavailable, WorkerLost
from common.state.connect import script_text, translated
from common.state.keys import Keys, hex_incarnation

_BATCH = 2048  # hashes a script call: bounds how long others wait for the server
_SCAN_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Repair:
    """What anti-entropy found: entries that were missing, and phantoms that nobody holds. Both are put right."""

    missing: int
    phantom: int


class IndexWriter:
    """Keeps the index equal to one instance's cache, in batches.

    `dirty` means that the index may differ from what was written here: nothing is registered yet, a write failed, or
    the index was wiped. Then only `repair` writes.
    """

    def __init__(self, redis: Redis, keys: Keys, instance: str, incarnation: int) -> None:
        self._redis = redis
        self._members = keys.index_members
        self._prefix = keys.index_prefix
        self._instance = instance
        self._incarnation = hex_incarnation(incarnation)
        self._blocks = f"{keys.index_prefix}{instance}:{self._incarnation}"
        self._register = redis.register_script(script_text("index_register.lua"))
        self._write = redis.register_script(script_text("index_write.lua"))
        self._drop = redis.register_script(script_text("index_drop.lua"))
        self.dirty = True

    async def write(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Tell what came into the cache and what was evicted; unknown removals are no error.

        Raises:
            DependencyUnavailable: it could not be told, or the index lost this instance; `repair` is due.
        """
        if self.dirty:
            raise DependencyUnavailable(f"prefix index of {self._instance} awaits repair")
        self.dirty = True
        with translated("prefix index write"):
            # Removals first: a reader had better miss a block than look for one that is gone.
            for batch in _batches(removed):
                await self._call(b"", batch)
            for batch in _batches(added):
                await self._call(batch, b"")
        self.dirty = False

    async def repair(self, held: Collection[bytes]) -> Repair:
        """Make the index equal to `held`, all that the cache holds now.

        Raises:
            DependencyUnavailable: Redis does not answer.
            WorkerLost: a later incarnation of the instance is registered.
        """
        self.dirty = True
        with translated("prefix index repair"):
            arguments = [self._prefix, self._instance, self._incarnation]
            if not await self._register(keys=[self._members], args=arguments):
                raise WorkerLost(f"a later incarnation of {self._instance} is in the prefix index")
            indexed = {entry async for entry in self._redis.sscan_iter(self._blocks, count=_SCAN_COUNT)}
            wanted = set(held)
            phantom, missing = list(indexed - wanted), list(wanted - indexed)
            for batch in _batches(phantom):
                await self._call(b"", batch)
            for batch in _batches(missing):
                await self._call(batch, b"")
        self.dirty = False
        return Repair(len(missing), len(phantom))

    async def reset(self) -> None:
        """Forget every entry of this incarnation at once: its cache was cleared, or it leaves. `repair` is due.

        Raises:
            DependencyUnavailable: Redis does not answer.
        """
        self.dirty = True
        with translated("prefix index reset"):
            await self._drop(keys=[self._members, self._blocks], args=[self._instance, self._incarnation])

    async def _call(self, added: bytes, removed: bytes) -> None:
        if not await self._write(
            keys=[self._members, self._blocks], args=[self._instance, self._incarnation, added, removed]
        ):
            self.dirty = True
            raise DependencyUnavailable(f"the prefix index lost {self._instance}")


def _batches(hashes: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    for chain_hash in hashes:
        batch.append(chain_hash)
        if len(batch) == _BATCH:
            yield b"".join(batch)
            batch = []
    if batch:
        yield b"".join(batch)
