"""One rank of a decode instance: ``python -m services.decode.rank``, started by its pod."""

import asyncio
import sys

import torch
from prometheus_client import CollectorRegistry

from common.config.cluster import DecodeConfig
from common.engine.decode_engine import DecodeEngine
from common.engine.events import DecodeEvent
from common.engine.loop import EngineLoop
from common.errors import InternalError
from common.kv.block_pool import BlockPool
from common.kv.hashing import chain_hashes
from common.request import Work
from common.rpc.server import Health, Probe
from common.telemetry.exporter import MetricsExporter, Probes
from common.telemetry.families import instance_labels
from common.telemetry.worker_metrics import worker_metrics
from common.transfer.exported import exported_reader
from common.transfer.landing import HostLanding
from common.transfer.memory import tensor_region
from common.transfer.reader import ReaderLimits, TransferReader
from common.worker.announcer import ClusterAnnouncer
from common.worker.describe import describe
from common.worker.engine_shape import decode_settings
from common.worker.event_channel import EventChannel
from common.worker.lifecycle import serve_instance
from common.worker.liveness import Liveness
from common.worker.memory import asked_by
from common.worker.rank_main import RankContext, end_process, poll_s, rank_main, rest_s
from common.worker.rank_parts import RankParts
from services.decode.acquaintance import Acquaintances
from services.decode.instance import DecodeInstance
from services.decode.outcomes import Outcomes
from services.decode.reads import Reads
from services.decode.servicer import SERVICE, DecodeServicer, register

_LOOK_EVERY_S = 0.25


async def serve(context: RankContext, parts: RankParts) -> None:
    """Build the instance around its engine and serve it to its end."""
    config, clock, name = context.config, context.clock, context.place.instance
    registry = CollectorRegistry()
    metrics = worker_metrics(registry, model=config.model.name, role="decode", dp_rank=context.place.dp_rank)
    channel: EventChannel[DecodeEvent] = EventChannel(asyncio.get_running_loop())
    engine = DecodeEngine(
        decode_settings(config), parts.runner, BlockPool(config.decode.blocks), clock, parts.group.gate, root=parts.root
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
    outcomes = Outcomes(asyncio.get_running_loop(), loop)
    reader = _reader(context, parts, outcomes)
    labels = instance_labels(model=config.model.name, role="decode", dp_rank=context.place.dp_rank)
    registry.register(exported_reader(reader, labels))
    liveness = Liveness(loop, context.worker.stalled_after_s, {"transfer reader": reader.progress_age_s})
    probes = Probes(liveness.fault, lambda: health.serving(Probe.READINESS))
    exporter = MetricsExporter(registry, context.worker.host, context.metrics_port, probes)
    reads = Reads(name, parts.compatibility, reader, config.decode.transfer_timeout_s, outcomes.failed)

    def hashes(work: Work) -> list[bytes]:
        return chain_hashes(parts.root(work.tenant), work.token_ids, config.block_tokens)

    instance = DecodeInstance(loop, reads, metrics, context.incarnation, parts.pool.block_bytes, hashes)
    channel.listen(instance.on_events)
    outcomes.bind(reads, instance)
    servicer = DecodeServicer(instance, describe(context, parts.compatibility), clock)

    async def close() -> None:
        await reads.close()
        await asyncio.to_thread(reader.close)
        exporter.close()

    announcer = ClusterAnnouncer(context, loop, metrics, registry, instance.cancel)
    await serve_instance(
        context,
        loop,
        instance,
        announcer,
        add_servicer=lambda server: register(servicer, server),
        services=[SERVICE],
        close=close,
        ending=parts.group.ending,
        health=health,
        liveness=liveness,
        beside=[Acquaintances(reads, clock).keep(lambda: announcer.leases), watch(reader)],
    )


async def watch(reader: TransferReader) -> None:
    """Without its reader an instance would look well and take work whose latent never lands.

    Raises:
        InternalError: the reader has ended before anybody closed it.
    """
    while reader.alive:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY_S)
    raise InternalError("the transfer reader ended unexpectedly")


def _reader(context: RankContext, parts: RankParts, outcomes: Outcomes) -> TransferReader:
    """The landing arena, one block longer than its slots, and the thread that reads into it."""
    decode, pool = context.config.decode, parts.pool
    shape = (decode.landing_blocks + 1, *pool.tensor.shape[1:])
    with asked_by("decode.landing_blocks", decode.landing_blocks, shape[0] * pool.block_bytes, pool.tensor.device):
        arena = torch.zeros(shape, dtype=pool.tensor.dtype, device=pool.tensor.device)
    mtp_slot_bytes = pool.tensor.shape[3] * pool.tensor.element_size() if parts.model.has_mtp else 0
    return TransferReader(
        f"{context.place.instance}@{context.incarnation:x}",
        tensor_region(arena),
        pool.block_bytes,
        HostLanding(arena, pool.tensor, mtp_slot_bytes),
        outcomes,
        reader_limits(decode),
        rest_s=rest_s(context.worker),
    )


def reader_limits(decode: DecodeConfig) -> ReaderLimits:
    """However a prefill instance stops, the rest of the arena stays for reads from the others."""
    return ReaderLimits(slots_per_peer=decode.draining_blocks_limit)


if __name__ == "__main__":
    end_process(rank_main("decode", sys.argv[1:], serve))
