"""What an instance computes for itself before it registers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from common.engine.events import Failed, FirstToken, PrefillEvent, Started
from common.engine.prefill_rate import PrefillRate
from common.engine.settings import EngineShape
from common.errors import InternalError
from common.request import FinishReason, GeneratedToken, Work
from services.prefill.warm_up import WarmUp

SHAPE = EngineShape(64, 4096, 16, 8, 64, max_step_tokens=256, draft_tokens=1)
VOCAB = 300


class Engine:
    """Computes each prompt at once, the first at 10 tokens a second and the second at 1,000."""

    def __init__(self) -> None:
        self.rate = PrefillRate()
        self.works: list[Work] = []
        self.error: InternalError | None = None
        self.warm_up: WarmUp

    def post(self, command: Callable[[Any], Any]) -> Future:
        future: Future = Future()
        future.set_result(command(self))
        return future

    def submit(self, work: Work, keep: bool) -> None:
        assert not keep
        self.works.append(work)
        tokens = len(work.token_ids)
        self.rate.add(tokens, tokens / (10.0 if len(self.works) == 1 else 1000.0))
        first = FirstToken(work.work_id, GeneratedToken(tokens, 7), FinishReason.LENGTH, 0.1)
        events: list[PrefillEvent] = [
            Started("another", 0, 1, 0.0),
            Started(work.work_id, 0, 1, 0.0),
            first if self.error is None else Failed(work.work_id, self.error),
        ]
        asyncio.get_running_loop().call_soon(self.warm_up.on_events, events)


def made() -> tuple[Engine, WarmUp, list[PrefillEvent]]:
    engine, others = Engine(), []
    engine.warm_up = WarmUp(engine, SHAPE, VOCAB, others.extend)  # type: ignore[arg-type]
    return engine, engine.warm_up, others


async def test_the_second_prompt_is_what_counts() -> None:
    engine, warm_up, others = made()
    assert await warm_up.run() == pytest.approx(1000.0)
    first, second = engine.works
    assert len(first.token_ids) == len(second.token_ids) == 256
    assert first.token_ids[0] != second.token_ids[0]  # nothing of it is cached
    assert all(0 <= token < VOCAB for work in engine.works for token in work.token_ids)
    assert not first.tenant.isprintable()
    assert others == [Started("another", 0, 1, 0.0)] * 2
    warm_up.on_events(later := [Started("w", 0, 1, 0.0)])
    assert others[2:] == later


async def test_an_engine_that_cannot_compute_does_not_register() -> None:
    engine, warm_up, _ = made()
    engine.error = InternalError("out of memory")
    with pytest.raises(InternalError, match="out of memory"):
        await warm_up.run()
