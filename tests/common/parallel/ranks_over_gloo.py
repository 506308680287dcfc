"""What one rank of test_gloo.py runs, in a process of its own."""

import json
from pathlib import Path

import torch

from common.errors import WorkerLost
from common.model.batch import AttentionForm, Schedule
from common.model.load import load_model
from common.parallel.exchange import Exchange
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.gloo import GlooTransport
from common.parallel.groups import Topology, tensor_group
from common.parallel.rendezvous import connect_store
from common.parallel.transport import Channel
from common.parallel.waits import run
from tests.oracle.rank_group import BLOCK_TOKENS, BLOCKS, Instance, Span, experts_in, prompt

# Instance i's prompt lengths; the others have none and take part all the same.
PROMPTS = {0: (12, 1), 3: (23,)}


def main(directory: Path, out: Path, port: int, rank: int, world: int, tp: int) -> None:
    torch.set_num_threads(1)
    store = connect_store("127.0.0.1", port, timeout_s=60)
    transport = GlooTransport(store, rank, world, name="test", host="127.0.0.1", timeout_s=60)
    place = Topology(rank, world, tp)
    model = load_model(
        directory,
        topology=place,
        all_to_all=Exchange(transport, ExpertPlacement.contiguous(experts_in(directory), world)),
        tensor_group=tensor_group(place, transport),
    )
    cache = torch.zeros(BLOCKS, model.latent_layers, BLOCK_TOKENS, model.latent_width)
    batch = Instance().batch([Span(str(n), prompt(n)) for n in PROMPTS.get(place.instance, ())])
    for schedule in Schedule:
        announce = len(PROMPTS.get(place.instance, ()))
        hidden = run(
            model.hidden_states(batch, cache, form=AttentionForm.MULTI_HEAD, schedule=schedule, announce=announce)
        )
        torch.save((model.logits(hidden), model.announced), out / f"{rank}-{schedule.name}.pt")
    if rank == 0:
        try:
            transport.receive(world - 1, Channel.COLLECTIVE)  # the last rank leaves without a word
        except WorkerLost as error:
            (out / "lost.json").write_text(json.dumps(str(error)))
    transport.close(60)
