"""Asks Redis and NATS what they are."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError

from common.bus.connection import servers_of
from common.config.address import without_password
from common.config.cluster import EMBEDDED, ClusterConfig
from common.state.connect import close_redis
from common.state.keys import Keys
from common.state.worker_leases import WorkerLeases, WorkerRecord
from services.launcher.doctor.facts import UNTRUSTED, Nats, Redis

_AGAIN_AFTER_S = 0.5
_Told = TypeVar("_Told")
_REFUSALS = ("NOAUTH", "WRONGPASS", "invalid username-password", "invalid password")


async def gather_dependencies(
    config: ClusterConfig, *, patient: bool
) -> tuple[Redis | None, list[WorkerRecord], Nats | None]:
    """Both, and the instances that have a lease.

    Args:
        patient: give each the time that a process gives it at its start, since nothing orders the start of pods.
    """
    (redis, records), nats = await asyncio.gather(
        _answered(lambda: gather_redis(config), lambda told: _is_away(told[0]), config.redis.start_timeout_s * patient),
        _answered(lambda: gather_nats(config), _is_away, config.nats.start_timeout_s * patient),
    )
    return redis, records, nats


async def _answered(ask: Callable[[], Awaitable[_Told]], is_away: Callable[[_Told], bool], within_s: float) -> _Told:
    """The first answer, or the last failure."""
    give_up_s = time.monotonic() + within_s
    while True:
        told = await ask()
        if not is_away(told) or time.monotonic() >= give_up_s:
            return told
        await asyncio.sleep(_AGAIN_AFTER_S)


def _is_away(told: Redis | Nats | None) -> bool:
    """A refusal is an answer, and so is a certificate that is not trusted: both will be the same later."""
    return told is not None and bool(told.error) and not told.refused and UNTRUSTED not in told.error


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
        return Redis(error=f"{without_password(url)}: {error}", refused=True), []
    except ResponseError as error:
        refused = str(error).startswith(_REFUSALS)
        return Redis(error=f"{without_password(url)}: {error}", refused=refused), []
    except (RedisError, OSError, TimeoutError) as error:
        return Redis(error=f"{without_password(url)}: {error}"), []
    finally:
        await close_redis(client)
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
                servers_of(url),
                connect_timeout=timeout_s,
                allow_reconnect=False,
                max_reconnect_attempts=0,
                error_cb=note,
            )
    except (NatsError, OSError, TimeoutError) as error:
        text = f"{without_password(url)}: {error or type(error).__name__} {' '.join(said)}".strip()
        await _close(client, timeout_s)
        return Nats(error=text, refused="authorization" in text.lower())
    version = client.connected_server_version
    facts = Nats(version=f"{version.major}.{version.minor}.{version.patch}", max_payload_bytes=int(client.max_payload))
    await _close(client, timeout_s)
    return facts


async def _close(client: Client, timeout_s: float) -> None:
    """The client's own end waits for ever when TLS was refused."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await client.close()
