"""A scheduler replica in this process over fake workers, reached through gRPC."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from common.clock import MonotonicClock
from common.engine.events import EngineLoad
from common.errors import DependencyUnavailable
from common.request import Sampling
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import Delta, GenerateRequest
from common.rpc.server import Health, build_server, start_server
from common.state.prefix_index import HeldPrefix, LookupAnswer
from common.state.worker_leases import WorkerRecord
from services.scheduler.model_card import ModelCard
from services.scheduler.placement import PlacementPolicy
from services.scheduler.replica import Replica, build_replica
from services.scheduler.servicer import SERVICE, register
from services.scheduler.settings import AdmissionPolicy, MembershipPolicy, RetryPolicy, SchedulerSettings
from services.scheduler.tokenizer import Tokenizer
from tests.fakes.workers import BLOCK_TOKENS, VOCAB_TOKENS, FakeDecode, FakePrefill, Script, draw

EOS = 1
CARD = ModelCard("tiny", VOCAB_TOKENS, 4096, frozenset({EOS}), Sampling())
SETTINGS = SchedulerSettings(
    name="s0",
    admission=AdmissionPolicy(max_wait_s=2.0),
    retry=RetryPolicy(resume_wait_s=5.0),
    membership=MembershipPolicy(0.05, 0.1, 0.5, 0.5, 1.0),
    placement=PlacementPolicy(block_tokens=BLOCK_TOKENS, chunk_tokens=64),
    admit_timeout_s=3.0,
)


async def until(condition: Callable[[], bool], timeout_s: float = 5.0, what: str = "condition") -> None:
    """Wait for a condition, with a deadline that fails the test."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not come true in {timeout_s} s"
        await asyncio.sleep(0.005)


class FixedDiscovery:
    """Leases that a test holds in its hands."""

    def __init__(self) -> None:
        self.workers: dict[str, FakePrefill | FakeDecode] = {}
        self.gone = False
        self.looks = 0

    async def current(self) -> Sequence[WorkerRecord]:
        self.looks += 1
        if self.gone:
            raise DependencyUnavailable("redis: no answer")
        return [WorkerRecord(w.instance, w.role, w.group, w.address, w.incarnation) for w in self.workers.values()]


class CacheIndex:
    """The prefix index as if every instance had announced everything in time."""

    def __init__(self, prefills: dict[str, FakePrefill]) -> None:
        self.prefills = prefills
        self.answers = True
        self.asked: list[list[bytes]] = []

    async def lookup(self, hashes: Sequence[bytes]) -> LookupAnswer:
        self.asked.append(list(hashes))
        if not self.answers:
            return LookupAnswer(known=False)
        held = []
        for name, prefill in self.prefills.items():
            blocks = next((i for i, one in enumerate(hashes) if one not in prefill.cache), len(hashes))
            if blocks:
                held.append(HeldPrefix(name, prefill.incarnation, blocks))
        return LookupAnswer(tuple(held))


class FakeCluster:
    """Use as ``async with FakeCluster(prefills=2) as cluster``; `cluster.client` is the front door's client."""

    def __init__(
        self,
        prefills: int = 1,
        decodes: int = 1,
        *,
        script: Script = draw,
        settings: SchedulerSettings = SETTINGS,
        card: ModelCard = CARD,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.prefills = {f"p{i}": FakePrefill(f"p{i}", script=script) for i in range(prefills)}
        self.decodes = {f"d{i}": FakeDecode(f"d{i}", self.prefills, script=script) for i in range(decodes)}
        self.discovery = FixedDiscovery()
        self.index = CacheIndex(self.prefills)
        self.registry = CollectorRegistry()
        self.settings = settings
        self.card = card
        self.replica: Replica = build_replica(
            card, tokenizer, self.discovery, self.index, settings, MonotonicClock(), self.registry
        )
        self.health = Health()
        self._server = build_server()

    async def __aenter__(self) -> "FakeCluster":
        for worker in (*self.prefills.values(), *self.decodes.values()):
            await worker.start()
            self.discovery.workers[worker.instance] = worker
        register(self.replica.core, self._server)
        port = await start_server(self._server, "127.0.0.1:0", self.health, [SERVICE])
        self.address = f"127.0.0.1:{port}"
        self._membership = asyncio.create_task(self.replica.membership.run())
        self.client = InferenceClient(self.address)
        await self.ready()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.client.close()
        await self._server.stop(0)
        await self.replica.background.end()
        self._membership.cancel()
        await asyncio.wait({self._membership})
        for worker in (*self.prefills.values(), *self.decodes.values()):
            await worker.kill()

    async def ready(self) -> None:
        fleet = self.replica.fleet
        count = len(self.discovery.workers)
        await until(lambda: len(fleet.ready("prefill")) + len(fleet.ready("decode")) == count, what="all ready")

    async def ask(self, request: GenerateRequest, timeout_s: float = 20.0) -> list[Delta]:
        async with asyncio.timeout(timeout_s):
            return [delta async for delta in self.client.generate(request)]

    async def idle(self, timeout_s: float = 3.0) -> None:
        """Back at idle level: no lease, no work, no booking, nobody live."""
        fleet = self.replica.fleet

        def level() -> bool:
            return (
                not any(p.leases for p in self.prefills.values())
                and not any(d.works for d in self.decodes.values())
                and not any(one.bookings.open for one in fleet)
                and fleet.on_the_way == 0
                and self.replica.core.live_requests == 0
                and self.replica.turns.live == 0
            )

        await until(level, timeout_s, "idle level")

    async def prefills_and_decodes_idle(self, timeout_s: float = 3.0) -> None:
        """No worker has anything, whatever the scheduler still holds."""
        await until(
            lambda: (
                not any(p.leases for p in self.prefills.values()) and not any(d.works for d in self.decodes.values())
            ),
            timeout_s,
            "idle workers",
        )

    def report(self, name: str, load: EngineLoad) -> None:
        """As a load report from the bus."""
        worker = self.discovery.workers[name]
        self.replica.fleet.report(name, worker.incarnation, load)

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, {"model": self.card.name, **labels})
        assert value is not None, name
        return value


def with_settings(**changes: object) -> SchedulerSettings:
    return replace(SETTINGS, **changes)


def drawn(decode: FakeDecode) -> int:
    """Tokens that a fake has drawn for the work it has now."""
    return sum(running.drawn for running in decode.works.values())


def tokens_of(deltas: Sequence[Delta], choice: int = 0) -> list[int]:
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


def text_of(deltas: Sequence[Delta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)
