"""What a prefill instance keeps of a piece of work, and until when."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from prometheus_client import CollectorRegistry

from common.engine.events import FirstToken, Started
from common.request import Compatibility, FinishReason, GeneratedToken, Limits, Sampling, TransferHello, Work
from common.telemetry.trace import continued, tracing
from common.telemetry.worker_metrics import worker_metrics
from common.transfer.memory import MemoryRegion
from common.transfer.source import TransferSource
from services.prefill.instance import EngineLeases, PrefillInstance
from services.prefill.runs import Runs
from tests.fakes.cluster import until

COMPATIBILITY = Compatibility("fp", "contract", "float32", 16, 3, 96, 1)


class Engine:
    """Runs commands at once."""

    def post(self, command: Callable[[Any], Any]) -> Future:
        future: Future = Future()
        future.set_result(command(self))
        return future

    def submit(self, _work: Work, _keep: bool) -> None: ...

    def cancel(self, _work_id: str) -> bool:
        return True


class Agent:
    metadata = b"agent"
    pool = MemoryRegion(0, 64)


async def test_work_that_nobody_will_read_leaves_no_transfer_behind(json_logs) -> None:
    """One token is prefill's alone; were its transfer kept, the instance could never drain."""
    engine, runs = Engine(), Runs()
    source = TransferSource(Agent(), 1, 64, COMPATIBILITY, EngineLeases(engine, runs))  # type: ignore[arg-type]
    assert isinstance(source.hello, TransferHello)
    metrics = worker_metrics(CollectorRegistry(), model="m", role="prefill", dp_rank=0)
    instance = PrefillInstance(engine, source, runs, metrics, 30.0)  # type: ignore[arg-type]
    work = Work("w", "s", (1, 2, 3), 3, Sampling(), Limits(1))

    async def collect() -> int:
        return len([event async for event in instance.run(work, keep_for_decode=False)])

    with tracing(trace := continued(None)):
        running = asyncio.create_task(collect())
    await until(lambda: len(runs) == 1)
    instance.on_events([Started("w", 0, 1, 0.0)])
    instance.on_events([FirstToken("w", GeneratedToken(3, 7), FinishReason.LENGTH, 0.1)])
    assert await asyncio.wait_for(running, 5) == 2
    assert not instance.busy
    (line,) = json_logs()  # of the request that the work was for
    assert (line["event"], line["work_id"], line["trace_id"]) == ("prefilled", "w", trace.trace_id)
