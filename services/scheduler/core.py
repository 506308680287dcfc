"""The scheduler as its edges see it: requests in, deltas out, and what it knows of itself."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from common.errors import Draining, DuplicateRequest, InvalidInput, TandemError, UnknownModel
from common.rpc.inference_data import CancelOutcome, ClusterInfo, Delta, Explanation, GenerateRequest, ModelInfo
from common.telemetry.trace import Trace, continued
from services.scheduler.front_door import ValidRequest, validate
from services.scheduler.journey import Itinerary, Journey
from services.scheduler.model_card import ModelCard

_LONG_CHARS = 4096  # longer prompts are encoded beside the event loop, which serves everybody


@dataclass(frozen=True, slots=True)
class _Arrival:
    request: GenerateRequest
    fresh_id: str
    fresh_seed: int


class Core:
    """One replica. Owns the requests whose streams it holds."""

    def __init__(self, card: ModelCard, itinerary: Itinerary) -> None:
        self._card = card
        self._with = itinerary
        self._live: dict[str, Journey] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def live_requests(self) -> int:
        return len(self._live)

    @property
    def draining(self) -> bool:
        return self._draining

    async def generate(
        self, request: GenerateRequest, budget_s: float | None = None, caller: Trace | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Leaving early ends the request on every worker.

        Args:
            budget_s: what is left of the call's own deadline; the request's counts too.
            caller: the client's trace, which the request goes on with; without one it gets its own.

        Raises:
            TandemError
        """
        start_s = self._with.clock.now_s()
        try:
            journey, request_id = await self._begin(request, start_s, budget_s, continued(caller))
        except TandemError as error:
            self._with.around.metrics.count_failure(error)
            raise
        try:
            while (delta := await journey.take()) is not None:
                yield delta
        finally:
            journey.cancel("the client left")
            try:
                await journey.ended()
            finally:
                del self._live[request_id]
                if not self._live:
                    self._idle.set()

    async def cancel(self, request_id: str) -> CancelOutcome:
        """End a request here or at another replica.

        Raises:
            DependencyUnavailable: it is not here, and the others cannot be asked now.
        """
        if self.cancel_here(request_id):
            return CancelOutcome(found=True, replicas=1)
        elsewhere = self._with.around.cancel_elsewhere
        return CancelOutcome(found=False, replicas=1) if elsewhere is None else await elsewhere(request_id)

    def cancel_here(self, request_id: str) -> bool:
        """Whether it was live at this replica."""
        journey = self._live.get(request_id)
        if journey is None:
            return False
        journey.cancel("cancelled by request")
        return True

    async def drain(self, timeout_s: float, at_once: asyncio.Event) -> None:
        """Take nothing new, let live requests end, and cancel what is left after `timeout_s` or when told `at_once`."""
        self._draining = True
        ends = {asyncio.ensure_future(one.wait()) for one in (self._idle, at_once)}
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        journeys = list(self._live.values())
        for journey in journeys:
            journey.cancel("the scheduler shuts down")
        await asyncio.gather(*(journey.ended() for journey in journeys))

    def model(self, name: str) -> ModelInfo:
        if name and name != self._card.name:
            raise UnknownModel("model", name, f"served here: {self._card.name}")
        agreed = self._with.around.fleet.compatibility
        return ModelInfo(
            model=self._card.name,
            fingerprint=agreed.model_fingerprint if agreed else "",
            vocab_tokens=self._card.vocab_tokens,
            context_tokens=self._card.context_tokens,
            block_tokens=self._with.around.settings.placement.block_tokens,
            draft_tokens=agreed.draft_tokens if agreed else 0,
            default_sampling=self._card.default_sampling,
            has_tokenizer=self._with.tokenizer is not None,
        )

    def cluster(self) -> ClusterInfo:
        turns = self._with.turns
        return ClusterInfo(
            model=self._card.name,
            instances=self._with.around.fleet.infos(),
            scheduler=self._with.work_ids.identity,
            live_requests=len(self._live),
            waiting_requests=turns.waiting,
            waiting_tokens=turns.waiting_tokens,
        )

    async def explain(self, request_id: str) -> Explanation:
        """Why a recent request went as it did, served here or at another replica.

        Raises:
            InvalidInput: nobody who answered in time served it, or not lately.
            DependencyUnavailable: it was not served here, and the others cannot be asked now.
        """
        explanation = self.explain_here(request_id)
        elsewhere = self._with.around.explain_elsewhere
        if explanation is None and elsewhere is not None:
            explanation = await elsewhere(request_id)
        if explanation is None:
            raise InvalidInput("request_id", request_id, "not among the recent requests of any replica that answered")
        return explanation

    def explain_here(self, request_id: str) -> Explanation | None:
        return self._with.explained.get(request_id)

    async def _begin(
        self, request: GenerateRequest, start_s: float, budget_s: float | None, trace: Trace
    ) -> tuple[Journey, str]:
        if self._draining:
            raise Draining("this scheduler shuts down; ask another")
        arrival = _Arrival(request, f"req-{secrets.token_hex(12)}", secrets.randbits(62))
        self._refuse_duplicate(request.request_id)
        valid = await self._validate(arrival)
        self._refuse_duplicate(valid.request_id)
        if self._draining:  # meanwhile; whoever drains may have found nobody
            raise Draining("this scheduler shuts down; ask another")
        budgets = [budget_s, None if valid.deadline_ms is None else valid.deadline_ms / 1000]
        deadlines = [start_s + budget for budget in budgets if budget is not None]
        journey = Journey(valid, self._with, start_s, min(deadlines, default=None), trace)
        self._live[valid.request_id] = journey
        self._idle.clear()
        journey.start()
        return journey, valid.request_id

    async def _validate(self, arrival: _Arrival) -> ValidRequest:
        request = arrival.request
        chars = len(request.text or "") + sum(len(message.content) for message in request.chat or ())
        if chars > _LONG_CHARS:
            return await asyncio.to_thread(self._validate_now, arrival)
        return self._validate_now(arrival)

    def _validate_now(self, arrival: _Arrival) -> ValidRequest:
        return validate(
            arrival.request,
            self._card,
            self._with.tokenizer,
            fresh_id=arrival.fresh_id,
            fresh_seed=arrival.fresh_seed,
        )

    def _refuse_duplicate(self, request_id: str) -> None:
        if request_id in self._live:
            raise DuplicateRequest("request_id", request_id, "not that of a live request")
