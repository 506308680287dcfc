"""What every process waits for at its start: Redis and NATS, each within its bound and until the process shall end."""

import asyncio

from redis.asyncio import Redis

from common.bus.connection import Bus, connect_bus
from common.config.address import without_password
from common.config.cluster import EMBEDDED, NatsConfig, RedisConfig
from common.errors import ConfigError
from common.process.stop_signal import unless_stopped
from common.state.connect import connect_redis


async def wait_for_redis(config: RedisConfig, stop: asyncio.Event) -> Redis:
    """
    Raises:
        DependencyUnavailable: it did not answer within its `start_timeout_s`.
        Cancelled: `stop` was set first.
    """
    connecting = connect_redis(config.url, config.timeout_s, config.start_timeout_s)
    return await unless_stopped(stop, f"Redis at {without_password(config.url)}", connecting)


async def wait_for_nats(config: NatsConfig, name: str, stop: asyncio.Event) -> Bus:
    """As `wait_for_redis`; `name` is who this is, for NATS' own monitoring."""
    connecting = connect_bus(config.url, name, config.timeout_s, config.start_timeout_s)
    return await unless_stopped(stop, f"NATS at {without_password(config.url)}", connecting)


def require_addresses(*urls: tuple[str, str]) -> None:
    """
    Args:
        urls: each with its field's name.

    Raises:
        ConfigError: the file still says that somebody else will start one.
    """
    for field, url in urls:
        if url == EMBEDDED:
            raise ConfigError(f"{field} = {url}: only `tandem up` starts its own; a process needs the address")
