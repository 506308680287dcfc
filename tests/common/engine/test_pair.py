"""Both engines together over the scripted model: the text is right whatever the schedule of work."""

import random

import pytest

from tests.fakes.engines import MakePair, make_work
from tests.fakes.scripted_model import ScriptedModel


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(97), k=length)


@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_greedy_text_is_the_models_own(make_pair: MakePair, drafts: int, chunk: int) -> None:
    model = ScriptedModel()
    pair = make_pair(model, drafts=drafts, chunk=chunk)
    journeys = [pair.submit(make_work(prompt(length), 20)) for length in (1, 2, 7, 8, 9, 15, 16, 17, 40, 64, 65)]
    pair.run()
    for journey in journeys:
        assert journey.token_ids == model.greedy(journey.work.token_ids, 20)
        if drafts:
            assert journey.accepted > 0
