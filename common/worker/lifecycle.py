"""From a built instance to its orderly end: serve, announce, watch, drain, close."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc

from common.engine.loop import EngineLoop
from common.errors import InternalError, TandemError
from common.rpc.server import Health, Probe, build_server, start_server
from common.telemetry.logs import get_log
from common.worker.rank_main import RankContext

log = get_log(__name__)

_WATCH_INTERVAL_S = 0.25
_STREAM_GRACE_S = 2.0


class Instance(Protocol):
    """What the life cycle asks of a prefill or decode instance."""

    @property
    def busy(self) -> bool: ...

    def drain(self) -> None: ...


class Announcer(Protocol):
    """Tells the cluster about this instance: membership, load, prefix index."""

    async def start(self, address: str) -> None:
        """Register; from here on work may come."""
        ...

    async def drain(self) -> None:
        """Say that no new work is welcome."""
        ...

    async def close(self) -> None:
        """Take back what was said."""
        ...


async def serve_instance(
    context: RankContext,
    engine: EngineLoop[Any, Any],
    instance: Instance,
    announcer: Announcer,
    *,
    add_servicer: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    close: Callable[[], Awaitable[None]],
) -> None:
    """Run until SIGTERM and then drain, or until the engine dies.

    Draining: readiness goes, new work is refused, work and leases that are here end or run out their time, then the
    engine, streams and clients are closed in this order.

    Raises:
        InternalError: the engine died; everything it held has failed.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    health, server = Health(), build_server()
    add_servicer(server)
    port = await start_server(server, f"{context.worker.host}:{context.port}", health, services)
    engine.start()
    try:
        await announcer.start(f"{context.worker.host}:{port}")
        await health.set(Probe.READINESS, serving=True)
        log.info("ready", port=port, incarnation=context.incarnation)
        await _watch(context, engine, health, ended)
        if engine.error is None:
            await _drain(context, instance, announcer, health)
    finally:
        await health.set(Probe.READINESS, serving=False)
        await asyncio.to_thread(engine.stop, 0.0)
        await announcer.close()
        await server.stop(_STREAM_GRACE_S)
        await close()
    if engine.error is not None:
        raise InternalError(f"the engine died: {engine.error}") from engine.error
    log.info("closed")


async def _watch(context: RankContext, engine: EngineLoop[Any, Any], health: Health, ended: asyncio.Event) -> None:
    """Liveness is recent progress of the engine; returns at the signal or with the engine."""
    stalled = False
    while not ended.is_set() and engine.error is None:
        age_s = engine.progress_age_s()
        if (age_s > context.worker.stalled_after_s) != stalled:
            stalled = not stalled
            log.warning("engine stalled" if stalled else "engine goes on", age_s=age_s)
            await health.set(Probe.LIVENESS, serving=not stalled)
            await health.set(Probe.READINESS, serving=not stalled)
        try:
            await asyncio.wait_for(ended.wait(), _WATCH_INTERVAL_S)
        except TimeoutError:
            continue


async def _drain(context: RankContext, instance: Instance, announcer: Announcer, health: Health) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + context.worker.drain_timeout_s
    log.info("draining", timeout_s=context.worker.drain_timeout_s)
    instance.drain()
    await health.set(Probe.READINESS, serving=False)
    try:
        await announcer.drain()
    except TandemError as error:  # a hint that could not be given
        log.warning("drain was not announced", why=error)
    while instance.busy and loop.time() < deadline_s:
        await asyncio.sleep(0.02)
    log.info("drained" if not instance.busy else "drain timed out")
