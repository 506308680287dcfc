"""Scripted prefill and decode instances behind real gRPC servers.

They keep the contracts of the real ones (leases, one message a step, work dropped with its stream) and draw token
`script(work, position)`, so that every delivered sequence has one right value.
"""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from common.clock import MonotonicClock
from common.errors import InvalidInput, LeaseLost, Overloaded, TandemError, WorkerLost
from common.kv.hashing import chain_hashes, root_hash
from common.request import Compatibility, FinishReason, GeneratedToken, PositionLogprobs, Work
from common.rpc.convert import (
    decode_request_from_wire,
    description_to_wire,
    prefill_event_to_wire,
    step_to_wire,
    work_from_wire,
)
from common.rpc.errors import abort
from common.rpc.server import Health, Probe, build_server, start_server
from common.rpc.trace_metadata import callers_trace
from common.rpc.worker_data import (
    DecodeRequest,
    InstanceDescription,
    PrefillFirstToken,
    PrefillStarted,
    StepBatch,
    WorkEvent,
    WorkFailed,
    WorkJoined,
    WorkPreempted,
    WorkTokens,
)
from common.telemetry.trace import Trace
from protos import engine_pb2, engine_pb2_grpc

BLOCK_TOKENS = 16
VOCAB_TOKENS = 1000
COMPATIBILITY = Compatibility("fp", "contract", "float32", BLOCK_TOKENS, 3, 96, 1)
_INCARNATIONS = itertools.count(1000)


def draw(work: Work, position: int) -> int:
    """The one right token: a function of seed and position, never a stop id."""
    return (work.sampling.seed * 131 + position * 7919) % (VOCAB_TOKENS - 10) + 10


Script = Callable[[Work, int], int]


def finish_of(work: Work, position: int, token_id: int) -> FinishReason | None:
    generated = position - work.prompt_tokens + 1
    if token_id in work.limits.stop_token_ids and generated > work.limits.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if generated >= work.limits.max_tokens else None


def token_of(work: Work, position: int, script: Script) -> GeneratedToken:
    token_id = script(work, position)
    logprobs = None
    if work.logprobs is not None:
        top = tuple((token_id + i, -0.5 - i) for i in range(work.logprobs))
        logprobs = PositionLogprobs(-0.5, top)
    return GeneratedToken(position, token_id, logprobs)


class FakeWorker:
    """What both roles share: a server on a free port, an incarnation, health."""

    def __init__(self, instance: str, role: str, group: str) -> None:
        self.instance, self.role, self.group = instance, role, group
        self.incarnation = next(_INCARNATIONS)
        self.compatibility = COMPATIBILITY
        self.total_blocks = 1000
        self.max_running = 64
        self.address = "127.0.0.1:0"
        self.clock = MonotonicClock()
        self.health = Health()
        self.traces: list[Trace | None] = []  # of the calls that brought work
        self.silent = asyncio.Event()  # set: no call is answered, as in a stopped process
        self._server: grpc.aio.Server | None = None

    def register(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        self._server = build_server()
        self.register(self._server)
        port = await start_server(self._server, self.address, self.health, [])
        self.address = f"127.0.0.1:{port}"
        await self.health.set(Probe.READINESS, serving=True)

    async def kill(self) -> None:
        """As kill -9: connections end at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def restart(self) -> None:
        """The same address, another incarnation."""
        await self.kill()
        self.incarnation = next(_INCARNATIONS)
        self.health = Health()
        await self.start()

    def description(self) -> InstanceDescription:
        return InstanceDescription(
            self.instance,
            self.role,
            self.group,
            self.incarnation,
            self.compatibility,
            self.total_blocks,
            4096,
            self.max_running,
        )


@dataclass(eq=False)
class Lease:
    first: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    released: asyncio.Event = field(default_factory=asyncio.Event)


class FakePrefill(FakeWorker, engine_pb2_grpc.PrefillServicer):
    def __init__(self, instance: str, group: str = "", script: Script = draw) -> None:
        super().__init__(instance, "prefill", group or instance)
        self.script = script
        self.delay_s = 0.0  # of every prefill
        self.token_s = 0.0  # of an uncached token
        self.start_delay_s = 0.0
        self.first_token_delay_s = 0.0  # how late the scheduler hears of it; decode knows in time
        self.failures: list[TandemError] = []  # raised by the next works, when they start
        self.mute_works = 0  # so many works end without a word
        self.leases: dict[str, Lease] = {}
        self.works: list[Work] = []
        self.computed_tokens = 0
        self.queued_tokens = 0
        self.cache: OrderedDict[bytes, None] = OrderedDict()
        self.cache_blocks = 10**9
        self.cancels: list[str] = []
        self._turn = asyncio.Lock()

    def register(self, server):
        engine_pb2_grpc.add_PrefillServicer_to_server(self, server)

    async def Describe(self, request, context):
        return description_to_wire(self.description())

    async def Cancel(self, request, context):
        self.cancels.append(request.work_id)
        return engine_pb2.CancelWorkReply(found=request.work_id in self.leases)

    def hashes(self, work: Work) -> list[bytes]:
        root = root_hash(COMPATIBILITY.model_fingerprint, BLOCK_TOKENS, COMPATIBILITY.kv_dtype, work.tenant)
        return chain_hashes(root, work.token_ids, BLOCK_TOKENS)

    async def Run(self, request, context):
        self.traces.append(callers_trace(context))
        work = work_from_wire(request.work, self.clock.now_s())
        try:
            async for event in self.run(work, keep=request.keep_for_decode):
                yield prefill_event_to_wire(event)
        except TandemError as error:
            yield prefill_event_to_wire(error)

    async def run(self, work: Work, *, keep: bool):
        if self.mute_works:
            self.mute_works -= 1
            return
        self.works.append(work)
        if -(-len(work.token_ids) // BLOCK_TOKENS) > self.total_blocks:
            raise InvalidInput("prompt", len(work.token_ids), "the pool's size")
        lease = self.leases[work.work_id] = Lease()
        try:
            hashes = self.hashes(work)
            uncached = len(work.token_ids)
            self.queued_tokens += uncached
            try:
                if self.start_delay_s:
                    await asyncio.sleep(self.start_delay_s)
                async with self._turn:
                    if self.failures:
                        raise self.failures.pop(0)
                    cached = 0
                    for block_hash in hashes[: (len(work.token_ids) - 1) // BLOCK_TOKENS]:
                        if block_hash not in self.cache:
                            break
                        self.cache.move_to_end(block_hash)
                        cached += 1
                    computed = len(work.token_ids) - cached * BLOCK_TOKENS
                    yield PrefillStarted(cached * BLOCK_TOKENS, 0.0, len(hashes) + 1)
                    if self.delay_s or self.token_s:
                        await asyncio.sleep(self.delay_s + computed * self.token_s)
                    self.computed_tokens += computed
                    for block_hash in hashes:
                        self.cache[block_hash] = None
                    while len(self.cache) > self.cache_blocks:
                        self.cache.popitem(last=False)
            finally:
                self.queued_tokens -= uncached
            token = token_of(work, len(work.token_ids), self.script)
            finish = finish_of(work, token.position, token.token_id)
            lease.first.set_result((token, finish))
            if self.first_token_delay_s:
                await asyncio.sleep(self.first_token_delay_s)
            yield PrefillFirstToken(token, finish, self.delay_s)
            if keep and finish is None:
                await lease.released.wait()
        finally:
            self.leases.pop(work.work_id, None)
            if not lease.first.done():
                lease.first.set_exception(LeaseLost("the work ended"))
                lease.first.exception()  # nobody may be waiting


@dataclass(eq=False)
class Running:
    work: Work
    scheduler: str
    position: int  # of the next token
    task: asyncio.Task | None = None

    @property
    def drawn(self) -> int:
        """Tokens drawn here."""
        return self.position - len(self.work.token_ids) - 1


class FakeDecode(FakeWorker, engine_pb2_grpc.DecodeServicer):
    """`prefills` stands for the transfer: instances by name, whose leases it reads."""

    def __init__(self, instance: str, prefills: dict[str, FakePrefill], group: str = "", script: Script = draw) -> None:
        super().__init__(instance, "decode", group or instance)
        self.script = script
        self.prefills = prefills
        self.step_s = 0.001
        self.tokens_per_step = 1
        self.admit_delay_s = 0.0
        self.join_delay_s = 0.0
        self.refusals: list[TandemError] = []  # answers of the next admissions
        self.faults: dict[int, TandemError | None] = {}  # after so many tokens of a work, once: fail, or None: preempt
        self.repeat_last = False  # sends every token twice
        self.works: dict[str, Running] = {}
        self.seen: list[DecodeRequest] = []
        self.cancels: list[str] = []
        self.streams: dict[str, asyncio.Queue] = {}
        self._step = 0

    def register(self, server):
        engine_pb2_grpc.add_DecodeServicer_to_server(self, server)

    async def Describe(self, request, context):
        return description_to_wire(self.description())

    async def Steps(self, request, context):
        queue: asyncio.Queue = asyncio.Queue()
        self.streams[request.scheduler] = queue
        queue.put_nowait([])
        try:
            while True:
                events = await queue.get()
                while not queue.empty():
                    events = events + queue.get_nowait()
                self._step += 1
                yield step_to_wire(StepBatch(self.incarnation, self._step, tuple(events)))
        finally:
            if self.streams.get(request.scheduler) is queue:
                del self.streams[request.scheduler]
            for work_id, running in list(self.works.items()):
                if running.scheduler == request.scheduler:
                    self.drop(work_id)

    async def Admit(self, request, context):
        plain = decode_request_from_wire(request, self.clock.now_s())
        self.seen.append(plain)
        self.traces.append(callers_trace(context))
        if self.admit_delay_s:
            await asyncio.sleep(self.admit_delay_s)
        if self.refusals:
            await abort(context, self.refusals.pop(0))
        if plain.work.scheduler not in self.streams:
            await abort(context, WorkerLost("Steps is not open"))
        if len(self.works) >= self.max_running:
            await abort(context, Overloaded("full", 0.1))
        running = Running(plain.work, plain.work.scheduler, len(plain.work.token_ids) + 1)
        self.works[plain.work.work_id] = running
        running.task = asyncio.create_task(self.decode(running, plain))
        return engine_pb2.DecodeAdmission(queued_ahead=0)

    async def Cancel(self, request, context):
        self.cancels.append(request.work_id)
        found = request.work_id in self.works
        self.drop(request.work_id)
        return engine_pb2.CancelWorkReply(found=found)

    def drop(self, work_id: str) -> None:
        running = self.works.pop(work_id, None)
        if running is not None and running.task is not None and running.task is not asyncio.current_task():
            running.task.cancel()

    def send(self, running: Running, event: WorkEvent) -> None:
        queue = self.streams.get(running.scheduler)
        if queue is not None:
            queue.put_nowait([event])

    async def kill(self) -> None:
        for work_id in list(self.works):
            self.drop(work_id)
        await super().kill()

    async def decode(self, running: Running, request: DecodeRequest) -> None:
        work_id = running.work.work_id
        try:
            source = self.prefills[request.source.instance]
            lease = source.leases.get(work_id)
            if lease is None or request.source.incarnation != source.incarnation:
                raise LeaseLost(f"{source.instance} has no lease for {work_id}")
            _, finish = await asyncio.shield(lease.first)
            if finish is None and self.join_delay_s:
                await asyncio.sleep(self.join_delay_s)
            lease.released.set()
            if finish is not None:
                return
            self.send(running, WorkJoined(work_id, 0.0, self.join_delay_s))
            await self._steps(running)
        except TandemError as error:
            self.send(running, WorkFailed(work_id, error))
        finally:
            self.works.pop(work_id, None)

    async def _steps(self, running: Running) -> None:
        work, sent = running.work, 0
        while True:
            await asyncio.sleep(self.step_s)
            tokens: list[GeneratedToken] = []
            finish = None
            for _ in range(self.tokens_per_step):
                token = token_of(work, running.position, self.script)
                tokens += [token, token] if self.repeat_last else [token]
                running.position += 1
                sent += 1
                finish = finish_of(work, token.position, token.token_id)
                if finish is not None or sent in self.faults:
                    break
            self.send(running, WorkTokens(work.work_id, tuple(tokens), finish, 1, 1))
            if finish is not None:
                return
            if sent in self.faults:
                error = self.faults.pop(sent)
                if error is None:
                    self.send(running, WorkPreempted(work.work_id))
                    return
                raise error
