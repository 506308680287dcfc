"""One scheduler replica's parts, put together from what it depends on."""

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from common.clock import Clock
from services.scheduler.core import Core
from services.scheduler.discovery import Discovery
from services.scheduler.explain import ExplainStore
from services.scheduler.fleet import Fleet
from services.scheduler.journey import Itinerary
from services.scheduler.membership import Membership, role_ready
from services.scheduler.metrics import scheduler_metrics
from services.scheduler.model_card import ModelCard
from services.scheduler.prefix_lookup import PrefixLookup
from services.scheduler.settings import SchedulerSettings
from services.scheduler.surroundings import Surroundings
from services.scheduler.tokenizer import Tokenizer
from services.scheduler.turns import Turns
from services.scheduler.work_ids import WorkIds


class Background:
    """Holds tasks that outlive what started them, such as cancels on their way to a worker."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Wait for all of them; each has its own time limit."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


@dataclass(frozen=True, slots=True)
class Replica:
    core: Core
    fleet: Fleet
    membership: Membership
    turns: Turns
    background: Background
    around: Surroundings
    identity: str

    def ready(self) -> bool:
        """Whether a request is welcome: not draining, and some instance of each role is ready."""
        return not self.core.draining and role_ready(self.fleet)


def build_replica(
    card: ModelCard,
    tokenizer: Tokenizer | None,
    discovery: Discovery,
    lookup: PrefixLookup,
    settings: SchedulerSettings,
    clock: Clock,
    registry: CollectorRegistry,
) -> Replica:
    work_ids = WorkIds(settings.name)
    fleet = Fleet(clock, settings)
    membership = Membership(fleet, discovery, work_ids.identity, clock, settings.membership)
    metrics = scheduler_metrics(registry, card.name)
    turns = Turns(clock, fleet, settings.admission)
    metrics.live_requests.set_function(lambda: turns.live)
    metrics.waiting_requests.set_function(lambda: turns.waiting)
    background = Background()
    around = Surroundings(fleet, membership, settings, metrics, background.keep)
    itinerary = Itinerary(around, lookup, turns, work_ids, clock, tokenizer, ExplainStore(settings.explained_requests))
    return Replica(Core(card, itinerary), fleet, membership, turns, background, around, work_ids.identity)
