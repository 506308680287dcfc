"""Before an instance registers it computes two prompts of its own: the first pays for what is built on first use, the
second tells how fast it is, so that every scheduler knows that from the first request on.
"""

import asyncio
from collections.abc import Callable

from common.engine.events import Failed, FirstToken, PrefillEvent
from common.engine.settings import EngineShape
from common.request import Limits, Sampling, Work
from common.telemetry.logs import get_log
from services.prefill.instance import PrefillLoop

log = get_log(__name__)

_TENANT = "\nwarm-up"  # none of a client's, whose names are printable: nobody is given what these prompts leave cached
_STRIDE = 7919  # a prime, so that tokens differ as those of a text do


class WarmUp:
    """Stands between the engine's events and `rest`, which hears of everybody else's work."""

    def __init__(
        self, engine: PrefillLoop, shape: EngineShape, vocab_size: int, rest: Callable[[list[PrefillEvent]], None]
    ) -> None:
        self._engine = engine
        self._tokens = min(shape.max_step_tokens, shape.context_tokens - 1)
        self._vocab_size = vocab_size
        self._rest = rest
        self._ended: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> float:
        """Measured tokens per second.

        Raises:
            TandemError: the engine cannot compute.
        """
        for number in range(2):
            await asyncio.wrap_future(self._engine.post(lambda engine: engine.rate.reset()))
            await self._compute(number)
        rate = await asyncio.wrap_future(self._engine.post(lambda engine: engine.rate.tokens_per_s))
        log.info("warm", tokens_per_s=rate, prompt_tokens=self._tokens)
        return rate

    async def _compute(self, number: int) -> None:
        token_ids = tuple((number + 1 + i * _STRIDE) % self._vocab_size for i in range(self._tokens))
        work = Work(
            work_id=f"warm-up-{number}",
            scheduler="warm-up",
            token_ids=token_ids,
            prompt_tokens=len(token_ids),
            sampling=Sampling(temperature=0.0),
            limits=Limits(1),
            tenant=_TENANT,
        )
        ended = self._ended[work.work_id] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wrap_future(self._engine.post(lambda engine: engine.submit(work, False)))
            await ended
        finally:
            del self._ended[work.work_id]

    def on_events(self, events: list[PrefillEvent]) -> None:
        """What the engine tells, in order."""
        for event in events:
            ended = self._ended.get(event.work_id)
            if ended is not None and not ended.done():
                match event:
                    case FirstToken():
                        ended.set_result(None)
                    case Failed():
                        ended.set_exception(event.error)
        others = [event for event in events if event.work_id not in self._ended]
        if others:
            self._rest(others)
