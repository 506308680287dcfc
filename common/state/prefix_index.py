"""The reading side of the prefix index: how many leading blocks of a prompt each instance holds.

Each instance has one set of the chain hashes it has cached, under a name that carries its incarnation. Tenants share
the sets and never each other's blocks, since a chain hash begins with the tenant. Answers are hints.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from common.clock import Clock
from common.errors import DependencyUnavailable, InvalidInput
from common.kv.hashing import HASH_BYTES
from common.state.breaker import Breaker
from common.state.connect import script_text, text, translated
from common.state.keys import Keys, hex_incarnation

MAX_BLOCKS = 2560
_FAILURES_TO_OPEN = 5
_OPEN_S = 1.0


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """An instance holds the first `blocks` blocks of the prompt, at least one."""

    instance: str
    incarnation: int
    blocks: int


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """`known` is False when the index did not answer within its budget, was in error, or is left alone."""

    held: tuple[HeldPrefix, ...] = ()
    known: bool = True


@dataclass(slots=True)
class LookupCounters:
    """Totals since the start; they sum to the lookups that have ended."""

    answered: int = 0
    timed_out: int = 0
    failed: int = 0
    skipped: int = 0  # the breaker was open


class PrefixIndex:
    """One script, one round trip a lookup.

    Args:
        redis: the client; its answers are bytes.
        keys: names of the cluster.
        clock: for the breaker.
        budget_s: a lookup never takes longer.
    """

    def __init__(self, redis: Redis, keys: Keys, clock: Clock, budget_s: float = 0.020) -> None:
        self._redis = redis
        self._keys = keys
        self._budget_s = budget_s
        self._lookup = redis.register_script(script_text("lookup.lua"))
        self._drop = redis.register_script(script_text("index_drop.lua"))
        self.breaker = Breaker(clock, _FAILURES_TO_OPEN, _OPEN_S)
        self.counters = LookupCounters()

    async def lookup(self, hashes: Sequence[bytes]) -> LookupAnswer:
        """Ask for the first 2,560 blocks at most. Never raises on Redis' account; without answer it is not `known`."""
        if not self.breaker.admit():
            self.counters.skipped += 1
            return LookupAnswer(known=False)
        asked = b"".join(hashes[:MAX_BLOCKS])
        if len(asked) != HASH_BYTES * min(len(hashes), MAX_BLOCKS):
            raise InvalidInput("hashes", len(asked), f"must be chain hashes of {HASH_BYTES} bytes each")
        try:
            with translated("prefix lookup"):
                async with asyncio.timeout(self._budget_s):
                    flat = await self._lookup(keys=[self._keys.index_members], args=[self._keys.index_prefix, asked])
        except DependencyUnavailable as error:
            self.breaker.failed()
            if isinstance(error.__cause__, TimeoutError | RedisTimeoutError):
                self.counters.timed_out += 1
            else:
                self.counters.failed += 1
            return LookupAnswer(known=False)
        self.breaker.succeeded()
        self.counters.answered += 1
        triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return LookupAnswer(
            tuple(
                HeldPrefix(instance.decode(), int(incarnation, 16), blocks) for instance, incarnation, blocks in triples
            )
        )

    async def members(self) -> dict[str, int]:
        """Every instance with entries, and its incarnation.

        Raises:
            DependencyUnavailable: Redis does not answer.
        """
        with translated("members of the prefix index"):
            members = await self._redis.hgetall(self._keys.index_members)
        return {text(instance): int(incarnation, 16) for instance, incarnation in members.items()}

    async def collect(self, alive: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
        """Drop all entries of incarnations that are not alive; any scheduler may. Returns what was dropped.

        Raises:
            DependencyUnavailable: Redis does not answer.
        """
        dead = [member for member in (await self.members()).items() if member not in alive]
        with translated("collection of dead entries"):
            for instance, incarnation in dead:
                name = hex_incarnation(incarnation)
                blocks = f"{self._keys.index_prefix}{instance}:{name}"
                await self._drop(keys=[self._keys.index_members, blocks], args=[instance, name])
        return dead
