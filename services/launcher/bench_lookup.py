"""How long one prefix lookup takes against a real server."""

import secrets
import tempfile
import time
from pathlib import Path

from common.clock import MonotonicClock
from common.errors import InternalError
from common.state.connect import close_redis, connect_redis
from common.state.index_writer import IndexWriter
from common.state.keys import Keys
from common.state.prefix_index import PrefixIndex
from services.launcher.embedded import EmbeddedValkey
from services.launcher.ports import free_ports

_INSTANCES = 4
_HASH_BYTES = 16


async def lookup_times_ms(blocks: int, lookups: int) -> list[float]:
    """Round trips for a prompt of `blocks` blocks, of which four instances hold a quarter, a half, and so on."""
    with tempfile.TemporaryDirectory() as scratch:
        server = EmbeddedValkey()
        server.start(free_ports(1), Path(scratch))
        try:
            redis = await connect_redis(server.url, timeout_s=1.0, within_s=10.0)
            try:
                keys = Keys("bench")
                hashes = [secrets.token_bytes(_HASH_BYTES) for _ in range(blocks)]
                for number in range(_INSTANCES):
                    held = hashes[: blocks * (number + 1) // _INSTANCES]
                    await IndexWriter(redis, keys, f"prefill-{number}-0", number + 1).repair(held)
                index = PrefixIndex(redis, keys, MonotonicClock(), budget_s=1.0)
                times_ms = []
                for _ in range(lookups):
                    begun_s = time.monotonic()
                    answer = await index.lookup(hashes)
                    times_ms.append((time.monotonic() - begun_s) * 1000)
                    if max(held.blocks for held in answer.held) != blocks:
                        raise InternalError(f"the index answers {answer}")
                return times_ms
            finally:
                await close_redis(redis)
        finally:
            server.stop()
