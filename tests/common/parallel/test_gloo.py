"""Ranks in processes of their own give what ranks in one process give, and notice when one is gone."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from common.errors import DependencyUnavailable
from common.model.batch import Schedule
from common.parallel.gloo import GlooTransport
from common.parallel.rendezvous import host_store
from tests.common.parallel import ranks_over_gloo
from tests.common.parallel.ranks_over_gloo import PROMPTS
from tests.oracle.rank_group import RankGroup, Span, prompt
from tests.oracle.zoo import Zoo

DEADLINE_S = 120


@pytest.mark.parametrize(("world", "tp"), [(2, 2), (4, 1)])
def test_processes_agree_with_one_process(zoo: Zoo, tmp_path: Path, world: int, tp: int) -> None:
    directory = zoo.checkpoint("base")
    store = host_store("127.0.0.1", 0, timeout_s=60)
    # One process imports torch and the model once; each rank is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([ranks_over_gloo.__name__])
    ranks = [
        context.Process(target=ranks_over_gloo.main, args=(directory, tmp_path, store.port, rank, world, tp))
        for rank in range(world)
    ]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(DEADLINE_S)
        assert [rank.exitcode for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
    group = RankGroup(directory, world=world, tp=tp)
    work = [[Span(str(n), prompt(n)) for n in PROMPTS.get(i, ())] for i in range(world // tp)]
    for schedule in Schedule:
        reference = group.logits(work, schedule=schedule)
        for rank in range(world):
            logits, announced = torch.load(tmp_path / f"{rank}-{schedule.name}.pt")
            assert torch.equal(logits, reference[rank // tp])
            assert announced == tuple(len(PROMPTS.get(r // tp, ())) for r in range(world))
    assert f"rank 0 lost rank {world - 1} on COLLECTIVE" in json.loads((tmp_path / "lost.json").read_text())


def test_a_group_that_does_not_come_together() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    with pytest.raises(DependencyUnavailable, match="group half: not all 2 ranks met rank 0 within 1 s"):
        GlooTransport(store, 0, 2, name="half", host="127.0.0.1", timeout_s=1)
