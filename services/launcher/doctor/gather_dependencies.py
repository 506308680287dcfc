"""Asks Redis and NATS what they are."""

import asyncio
import time
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.errors import Error as NatsError
from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError

from common.config.cluster import EMBEDDED, ClusterConfig
from common.state.keys import Keys
from common.state.worker_leases import WorkerLeases, WorkerRecord
from services.launcher.doctor.facts import Nats, Redis

_REFUSALS = ("NOAUTH", "WRONGPASS", "invalid username-password", "invalid password")


async def gather_redis(config: ClusterConfig) -> tuple[Redis | None, list[WorkerRecord]]:
    """What it is, and the instances that have a lease there."""
    url, timeout_s = config.redis.url, max(config.redis.timeout_s, 2.0)
    if url == EMBEDDED:
        return None, []
    client = RedisClient.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )
    try:
        before_s = time.time()
        seconds, micros = await client.time()
        middle_s = (before_s + time.time()) / 2
        info = await client.info()
        records = await WorkerLeases(client, Keys(config.cluster)).current()
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        return Redis(error=f"{_place(url)}: {error}", refused=True), []
    except ResponseError as error:
        refused = str(error).startswith(_REFUSALS)
        return Redis(error=f"{_place(url)}: {error}", refused=refused), []
    except (RedisError, OSError, TimeoutError) as error:
        return Redis(error=f"{_place(url)}: {error}"), []
    finally:
        await client.aclose()
    facts = Redis(
        version=str(info.get("redis_version", "")),
        eviction=str(info.get("maxmemory_policy", "noeviction")),
        memory_limit_bytes=int(info.get("maxmemory", 0)),
        is_replica=info.get("role") == "slave",
        is_cluster=bool(int(info.get("cluster_enabled", 0))),
        writes_log=bool(int(info.get("aof_enabled", 0))),
        clock_skew_s=middle_s - (seconds + micros / 1e6),
    )
    return facts, records


async def gather_nats(config: ClusterConfig) -> Nats | None:
    url, timeout_s = config.nats.url, max(config.nats.timeout_s, 2.0)
    if url == EMBEDDED:
        return None
    client, said = Client(), []

    async def note(error: Exception) -> None:
        said.append(str(error))

    try:
        async with asyncio.timeout(2 * timeout_s):
            await client.connect(
                url, connect_timeout=timeout_s, allow_reconnect=False, max_reconnect_attempts=0, error_cb=note
            )
    except (NatsError, OSError, TimeoutError) as error:
        text = f"{_place(url)}: {error or type(error).__name__} {' '.join(said)}".strip()
        await client.close()
        return Nats(error=text, refused="authorization" in text.lower())
    version = client.connected_server_version
    facts = Nats(version=f"{version.major}.{version.minor}.{version.patch}", max_payload_bytes=int(client.max_payload))
    await client.close()
    return facts


def _place(url: str) -> str:
    """Without the password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or ''}"
