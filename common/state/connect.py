"""The door to Redis: bounded waiting at the start, and the one translation of its errors."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from common.cancellation import kept_cancellation
from common.config.address import without_password
from common.errors import DependencyUnavailable
from common.telemetry.logs import get_log

log = get_log(__name__)

_RETRY_S = 0.25
_TELL_EVERY_S = 5.0


async def connect_redis(url: str, timeout_s: float, within_s: float) -> Redis:
    """A client that has been answered once.

    Args:
        url: redis://host:port/db.
        timeout_s: for one command, connecting included.
        within_s: how long to wait for a server that is not there yet.

    Raises:
        DependencyUnavailable: nobody answered within `within_s`.
    """
    # One retry: a connection that idled through a restart of the server fails on its first use.
    client = Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1)
    )
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    told_s = started_s
    shown = without_password(url)
    while True:
        try:
            with translated("Redis at start"):
                await client.ping()
        except asyncio.CancelledError:
            await close_redis(client)
            raise
        except DependencyUnavailable as error:
            now_s = loop.time()
            if now_s - started_s >= within_s:
                await close_redis(client)
                raise DependencyUnavailable(f"no Redis at {shown} within {within_s:g} s: {error}") from error
            if told_s == started_s or now_s - told_s >= _TELL_EVERY_S:
                log.warning("waiting for Redis", url=shown, waited_s=round(now_s - started_s, 1), within_s=within_s)
                told_s = now_s
            await asyncio.sleep(min(_RETRY_S, within_s))
            continue
        return client


async def close_redis(client: Redis) -> None:
    """End its connections. Never fails: it comes last, and must not take the place of an error on its way out."""
    try:
        with translated("close of Redis"):
            await client.aclose()
    except DependencyUnavailable as error:
        log.warning("Redis was left in the middle of its close", why=error)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Redis' errors, lost connections and timeouts become DependencyUnavailable."""
    try:
        with kept_cancellation():
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise DependencyUnavailable(f"{what}: {type(error).__name__}: {error}") from error


def script_text(name: str) -> str:
    """The server-side script in the file `name` beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def text(value: bytes | str) -> str:
    """An answer as text, whichever of the two the client was told to give."""
    return value if isinstance(value, str) else value.decode()
