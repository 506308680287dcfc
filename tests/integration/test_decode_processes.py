"""A decode group with every rank in a process of its own: lock-step, park and wake, followers, exact tokens."""

import contextlib
import multiprocessing
import queue
import random
import time
from dataclasses import dataclass

import pytest

from common.engine.events import BlocksReady, HandoffReady
from common.engine.settings import DecodeSettings, EngineShape, PrefillSettings
from common.parallel.rendezvous import host_store
from common.parallel.schedule import Schedule
from common.request import Sampling
from tests.fakes import decode_process
from tests.fakes.decode_process import Delivery, Place
from tests.fakes.engines import Cluster, make_work
from tests.fakes.model_ranks import model_ranks
from tests.oracle.zoo import Zoo

TOKENS = 10
WAIT_S = 90.0
PICKLABLE = Sampling(temperature=0.0, logit_bias={})  # the default is a view, which does not travel


@dataclass(frozen=True)
class Prepared:
    delivery: Delivery
    text: list[int]


def prepare(zoo: Zoo, model: str, lengths: tuple[int, ...], shape: EngineShape) -> list[Prepared]:
    """Prefill prompts in this process and take their latent out of the pool."""
    directory = zoo.checkpoint(model)
    ranks = model_ranks(directory, world=1, tp=1, schedule=Schedule.NONE)
    cluster = Cluster(ranks, ranks, PrefillSettings(shape), DecodeSettings(shape))
    cluster.hold = lambda work_id: True
    out = []
    for length in lengths:
        token_ids = random.Random(length).choices(range(2, 512), k=length)
        text = zoo.oracle(directory).greedy(token_ids, TOKENS)
        journey = cluster.submit(make_work(token_ids, TOKENS, sampling=PICKLABLE))
        cluster.settle()
        mine = [event for event in cluster.events if event.work_id == journey.work.work_id]
        blocks = [block.block for event in mine if isinstance(event, BlocksReady) for block in event.blocks]
        (handoff,) = [event.handoff for event in mine if isinstance(event, HandoffReady)]
        latent = cluster.prefills.instances[0].runner.pool.tensor[blocks].numpy().copy()
        out.append(Prepared(Delivery(journey.work, latent, handoff), text))
    return out


def next_tokens(outbox, processes) -> tuple[str, tuple[int, ...], bool]:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(queue.Empty):
            return outbox.get(timeout=0.5)
        assert all(process.is_alive() for process in processes)
    raise AssertionError(f"no tokens for {WAIT_S} s")


@pytest.mark.parametrize(("world", "tp", "drafts"), [(2, 1, 1), (4, 2, 2), (4, 1, 0)])
def test_exact_tokens_with_a_rank_a_process(zoo: Zoo, world: int, tp: int, drafts: int) -> None:
    """Work for one instance only, then after a park for another only, then for all at once."""
    model = "six_heads" if tp == 2 else "base"
    shape = EngineShape(32, 128, block_tokens=16, max_running=8, max_step_tokens=256, draft_tokens=drafts)
    first, second, *rest = prepare(zoo, model, (20, 33, *range(40, 40 + world // tp)), shape)
    context = multiprocessing.get_context("spawn")
    store = host_store("127.0.0.1", 0, timeout_s=WAIT_S)
    inboxes = [context.Queue() for _ in range(world)]
    outbox = context.Queue()
    processes = []
    for rank in range(world):
        place = Place(
            zoo.checkpoint(model), rank, world, tp, store.port, Schedule.DUAL_MICROBATCH, DecodeSettings(shape)
        )
        process = context.Process(target=decode_process.main, args=(place, inboxes[rank], outbox), daemon=True)
        process.start()
        processes.append(process)
    leaders = inboxes[::tp]
    texts: dict[str, list[int]] = {}

    def collect(works: list[Prepared]) -> None:
        waiting = {prepared.delivery.work.work_id for prepared in works}
        for prepared in works:
            texts[prepared.delivery.work.work_id] = [prepared.delivery.handoff.first_token.token_id]
        while waiting:
            work_id, token_ids, over = next_tokens(outbox, processes)
            texts[work_id] += token_ids
            if over:
                waiting.remove(work_id)

    leaders[0].put(first.delivery)
    collect([first])
    leaders[-1].put(second.delivery)
    collect([second])
    for inbox, prepared in zip(leaders, rest, strict=True):
        inbox.put(prepared.delivery)
    collect(rest)
    for inbox in leaders:
        inbox.put(None)
    for process in processes:
        process.join(WAIT_S)
    assert [process.exitcode for process in processes] == [0] * world
    for prepared in (first, second, *rest):
        assert texts[prepared.delivery.work.work_id] == prepared.text
