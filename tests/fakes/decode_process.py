"""One rank of a decode group as a process of its own, over gloo. A leader takes work and its latent from a queue."""

import queue
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from common.clock import MonotonicClock
from common.engine.decode_engine import DecodeEngine
from common.engine.events import DecodeEvent, Reserved, Tokens
from common.engine.loop import EngineLoop, follow
from common.engine.runner import Runner
from common.engine.settings import DecodeSettings
from common.kv.block_pool import BlockPool
from common.model.config import read_model_config
from common.model.load import load_model
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.gloo import GlooTransport
from common.parallel.groups import Topology, exchange, tensor_group
from common.parallel.rendezvous import connect_store
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from common.parallel.waits import run
from common.parallel.wake_flag import StoreWakeFlag
from common.request import Handoff, Work
from tests.fakes.engines import Rank, root
from tests.fakes.model_ranks import POLICIES

WAIT_S = 90.0


@dataclass(frozen=True)
class Place:
    directory: Path
    rank: int
    world: int
    tp: int
    port: int
    schedule: Schedule
    settings: DecodeSettings


@dataclass(frozen=True)
class Delivery:
    """A prompt's latent ``[blocks, layers, block_tokens, width]`` as numpy, and what goes with it."""

    work: Work
    latent: object
    handoff: Handoff


def main(place: Place, inbox: "Queue[Delivery | None]", outbox: "Queue[tuple[str, tuple[int, ...], bool]]") -> None:
    torch.set_num_threads(1)
    store = connect_store("127.0.0.1", place.port, timeout_s=WAIT_S)
    transport = GlooTransport(store, place.rank, place.world, name="decode", host="127.0.0.1", timeout_s=WAIT_S)
    topology = Topology(place.rank, place.world, place.tp)
    group = tensor_group(topology, transport)
    placement = ExpertPlacement.contiguous(read_model_config(place.directory).gate.experts, place.world)
    model = load_model(
        place.directory, topology=topology, all_to_all=exchange(transport, placement), tensor_group=group
    )
    shape = place.settings.shape
    runner = Rank(model, group).runner(shape)
    if topology.tp_rank:
        follow(runner)
        transport.close(WAIT_S)
        return
    gate = LockStepGate(POLICIES[place.schedule], StoreWakeFlag(store, "decode", lambda: store))
    engine = DecodeEngine(place.settings, runner, BlockPool(shape.total_blocks), MonotonicClock(), gate, root=root)
    events: queue.SimpleQueue[DecodeEvent] = queue.SimpleQueue()
    loop: EngineLoop[DecodeEngine, DecodeEvent] = EngineLoop(
        engine,
        lambda batch: [events.put(event) for event in batch],
        MonotonicClock(),
        name="decode",
        at_end=lambda: leave(runner, transport),
    )
    loop.start()
    while (delivery := inbox.get(timeout=WAIT_S)) is not None:
        serve(delivery, loop, events, outbox)
    loop.stop(drain_s=WAIT_S)
    assert loop.error is None, str(loop.error)
    engine.check_idle()


def leave(runner: Runner, transport: GlooTransport) -> None:
    run(runner.release_followers())
    transport.close(WAIT_S)


def serve(
    delivery: Delivery,
    loop: "EngineLoop[DecodeEngine, DecodeEvent]",
    events: "queue.SimpleQueue[DecodeEvent]",
    outbox: "Queue[tuple[str, tuple[int, ...], bool]]",
) -> None:
    work = delivery.work
    loop.post(lambda engine: engine.admit(work)).result(WAIT_S)
    over = False
    while not over:
        event = events.get(timeout=WAIT_S)
        if isinstance(event, Reserved):
            assert loop.post(partial(land, delivery=delivery, reserved=event)).result(WAIT_S)
        elif isinstance(event, Tokens):
            over = event.finish_reason is not None
            outbox.put((event.work_id, tuple(token.token_id for token in event.tokens), over))
        else:
            raise TypeError(f"neither reserved nor tokens: {event}")


def land(engine: DecodeEngine, *, delivery: Delivery, reserved: Reserved) -> bool:
    """What the reader does."""
    wanted = list(reserved.blocks[reserved.cached_blocks :])
    engine.runner.pool.tensor[wanted] = torch.from_numpy(delivery.latent)[reserved.cached_blocks :]
    return engine.landed(reserved.work_id, delivery.handoff)
