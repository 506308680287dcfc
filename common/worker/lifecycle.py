"""From a built instance to its orderly end: serve, announce, watch, drain, close."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import grpc

from common.config.address import host_port
from common.engine.loop import EngineLoop
from common.errors import DependencyUnavailable, InternalError, TandemError, WorkerLost
from common.process.stop_signal import stop_signal, unless_stopped
from common.rpc.server import Health, Probe, build_server, start_server
from common.telemetry.logs import get_log
from common.worker.group import GroupEnding
from common.worker.liveness import Liveness
from common.worker.rank_main import RankContext

log = get_log(__name__)

_WATCH_INTERVAL_S = 0.25
_STREAM_GRACE_S = 2.0
_DRAIN_POLL_S = 0.02
_LAST_STEP_S = 10.0
_LEAVE_GRACE_S = 2.0


class Instance(Protocol):
    """What the life cycle asks of a prefill or decode instance."""

    @property
    def busy(self) -> bool: ...

    def drain(self) -> None: ...


class Announcer(Protocol):
    """Tells the cluster about this instance: membership, load, prefix index."""

    async def start(self, address: str, stop: asyncio.Event) -> None:
        """Register; from here on work may come. Gives up when `stop` is set."""
        ...

    async def drain(self) -> None:
        """Say that no new work is welcome."""
        ...

    async def close(self) -> None:
        """Take back what was said."""
        ...

    @property
    def error(self) -> BaseException | None:
        """Why the instance cannot go on in this cluster; None while it can."""
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
    ending: GroupEnding | None,
    health: Health,
    liveness: Liveness,
    warm_up: Callable[[], Coroutine[None, None, None]] | None = None,
    beside: Sequence[Coroutine[None, None, None]] = (),
) -> None:
    """Run until SIGTERM and then drain, until the next SIGTERM at the longest, or until the engine dies.

    `warm_up` runs on the started engine before the registration, `beside` from there to the end.

    Draining: readiness goes, new work is refused, work and leases that are here end or run out their time, then the
    engine, streams and clients are closed in this order.

    Raises:
        InternalError: the engine died; everything it held has failed.
        Cancelled: asked to end before it was ready.
    """
    stop, loop = stop_signal(), asyncio.get_running_loop()
    server = build_server()
    add_servicer(server)
    port = await start_server(server, host_port(context.worker.host, context.port), health, services)
    engine.start()
    tasks: list[asyncio.Task[None]] = []
    drained = False
    try:
        if warm_up is not None:
            await unless_stopped(stop.asked, "the engine's warm-up", warm_up())
        await announcer.start(host_port(context.worker.host, port), stop.asked)
        tasks += [loop.create_task(work) for work in beside]
        await health.set(Probe.READINESS, serving=True)
        log.info("ready", port=port, incarnation=context.incarnation)
        await _watch(engine, announcer, tasks, health, liveness, stop.asked, ending)
        if engine.error is None:
            drained = await _drain(context, engine, instance, announcer, health, stop.at_once, ending)
    finally:
        await health.set(Probe.READINESS, serving=False)
        # After the last work the group still takes a step, in which all learn that nobody has any.
        await asyncio.to_thread(engine.stop, _LAST_STEP_S if drained else 0.0)
        await _leave(ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await announcer.close()
        await server.stop(_STREAM_GRACE_S)
        await close()
    if engine.error is not None:
        raise InternalError(f"the engine died: {engine.error}") from engine.error
    log.info("closed")


async def _watch(
    engine: EngineLoop[Any, Any],
    announcer: Announcer,
    beside: Sequence[asyncio.Task[None]],
    health: Health,
    liveness: Liveness,
    stop: asyncio.Event,
    ending: GroupEnding | None,
) -> None:
    """Show whether the instance makes progress; returns when it is time to drain, or with the engine."""
    live = True
    while not stop.is_set() and engine.error is None and not (ending is not None and ending.begun()):
        if announcer.error is not None:
            raise WorkerLost(f"no place in the cluster: {announcer.error}") from announcer.error
        for task in beside:
            if task.done():
                task.result()  # it ends by itself only by a fault of ours: do not go on without it
        fault = liveness.fault()
        if (fault is None) != live:
            live = fault is None
            log.warning("live again") if fault is None else log.error("not live", why=fault)
            await health.set(Probe.LIVENESS, serving=live)
            await health.set(Probe.READINESS, serving=live)
        try:
            async with asyncio.timeout(_WATCH_INTERVAL_S):
                await stop.wait()
        except TimeoutError:
            continue


async def _drain(
    context: RankContext,
    engine: EngineLoop[Any, Any],
    instance: Instance,
    announcer: Announcer,
    health: Health,
    at_once: asyncio.Event,
    ending: GroupEnding | None,
) -> bool:
    """Whether this instance, and every other of its group, has finished all that was there."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + context.worker.drain_timeout_s
    log.info("draining", timeout_s=context.worker.drain_timeout_s)
    instance.drain()
    await health.set(Probe.READINESS, serving=False)
    if ending is not None:
        ending.begin()
    try:
        await announcer.drain()
    except TandemError as error:  # a hint that could not be given
        log.warning("drain was not announced", why=error)

    async def wait_while(waiting: Callable[[], bool]) -> None:
        while waiting() and engine.error is None and loop.time() < deadline_s and not at_once.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)

    await wait_while(lambda: instance.busy)
    if ending is not None:
        ending.finish()
        await wait_while(lambda: not ending.finished())
    if engine.error is not None:
        return False
    drained = loop.time() < deadline_s and not at_once.is_set()
    log.info("drained" if drained else "drain cut short" if at_once.is_set() else "drain timed out")
    return drained


async def _leave(ending: GroupEnding | None) -> None:
    """Rank 0 hosts the store that the others still read until they have left."""
    if ending is None:
        return
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _LEAVE_GRACE_S
    try:
        ending.leave()
        while not ending.all_left() and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
    except DependencyUnavailable as error:
        log.info("the group's store ended first", why=error)
