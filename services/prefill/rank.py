"""One rank of a prefill instance: ``python -m services.prefill.rank``, started by its pod."""

import asyncio
import sys
from dataclasses import replace

from prometheus_client import CollectorRegistry

from common.engine.events import PrefillEvent
from common.engine.loop import EngineLoop
from common.engine.prefill_engine import PrefillEngine
from common.kv.block_pool import BlockPool
from common.rpc.server import Health, Probe
from common.telemetry.exporter import MetricsExporter, Probes
from common.telemetry.worker_metrics import worker_metrics
from common.transfer.agent import SourceAgent
from common.transfer.memory import tensor_region
from common.transfer.source import TransferSource
from common.worker.announcer import ClusterAnnouncer
from common.worker.describe import describe
from common.worker.engine_shape import prefill_settings
from common.worker.event_channel import EventChannel
from common.worker.lifecycle import serve_instance
from common.worker.liveness import Liveness
from common.worker.rank_main import RankContext, end_process, poll_s, rank_main, rest_s
from common.worker.rank_parts import RankParts
from services.prefill.instance import EngineLeases, PrefillInstance
from services.prefill.runs import Runs
from services.prefill.servicer import SERVICE, PrefillServicer, register
from services.prefill.warm_up import WarmUp


async def serve(context: RankContext, parts: RankParts) -> None:
    """Build the instance around its engine and serve it to its end."""
    config, clock, name = context.config, context.clock, context.place.instance
    registry = CollectorRegistry()
    metrics = worker_metrics(registry, model=config.model.name, role="prefill", dp_rank=context.place.dp_rank)
    channel: EventChannel[PrefillEvent] = EventChannel(asyncio.get_running_loop())
    engine = PrefillEngine(
        prefill_settings(config),
        parts.runner,
        BlockPool(config.prefill.blocks),
        clock,
        parts.group.gate,
        root=parts.root,
        incarnation=context.incarnation,
        early=channel.put,
    )
    loop = EngineLoop(
        engine,
        channel.put,
        clock,
        name=f"{name} engine",
        poll_s=poll_s(context),
        rest_s=rest_s(context.worker),
        at_end=parts.leave_group,
    )
    health = Health()
    liveness = Liveness(loop, context.worker.stalled_after_s)
    probes = Probes(liveness.fault, lambda: health.serving(Probe.READINESS))
    exporter = MetricsExporter(registry, context.worker.host, context.metrics_port, probes)
    agent = SourceAgent(f"{name}@{context.incarnation:x}", tensor_region(parts.pool.tensor))
    runs = Runs()
    source = TransferSource(
        agent, context.incarnation, parts.pool.block_bytes, parts.compatibility, EngineLeases(loop, runs)
    )
    instance = PrefillInstance(loop, source, runs, metrics, config.prefill.lease_s)
    warm_up = WarmUp(loop, engine.settings.shape, parts.model.vocab_size, instance.on_events)
    channel.listen(warm_up.on_events)
    servicer = PrefillServicer(instance, describe(context, parts.compatibility), clock)

    async def measure() -> None:
        servicer.description = replace(servicer.description, tokens_per_s=await warm_up.run())

    async def close() -> None:
        agent.close()
        exporter.close()

    await serve_instance(
        context,
        loop,
        instance,
        ClusterAnnouncer(context, loop, metrics, registry, instance.cancel),
        add_servicer=lambda server: register(servicer, server),
        services=[SERVICE],
        close=close,
        ending=parts.group.ending,
        health=health,
        liveness=liveness,
        warm_up=measure,
    )


if __name__ == "__main__":
    end_process(rank_main("prefill", sys.argv[1:], serve))
