"""Whatever happens between engine, event loop and scheduler, an instance forgets work exactly when its engine has."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from common.engine.events import Reserved, Tokens
from common.errors import Overloaded, Refused
from common.request import FinishReason, GeneratedToken, Limits, Sampling, Work
from common.rpc.worker_data import DecodeRequest, TransferSource
from common.telemetry.trace import Trace, continued, current_trace, tracing
from common.telemetry.worker_metrics import worker_metrics
from services.decode.instance import DecodeInstance
from tests.fakes.cluster import until


class SlowEngine:
    """An engine thread in the middle of a long step: commands wait until `turn`."""

    def __init__(self) -> None:
        self.commands: list[tuple[Callable[[Any], Any], Future]] = []
        self.admitted: list[str] = []
        self.cancelled: list[str] = []

    def post(self, command: Callable[[Any], Any]) -> Future:
        future: Future = Future()
        self.commands.append((command, future))
        return future

    def turn(self) -> None:
        commands, self.commands = self.commands, []
        for command, future in commands:
            if future.set_running_or_notify_cancel():
                future.set_result(command(self))

    def admit(self, work: Work) -> int:
        self.admitted.append(work.work_id)
        return 0

    def cancel(self, work_id: str) -> bool:
        self.cancelled.append(work_id)
        return True


class NoReads:
    def __init__(self) -> None:
        self.started: list[str] = []
        self.traces: list[Trace | None] = []

    def __len__(self) -> int:
        return 0

    def start(self, wanted: Any) -> None:
        self.started.append(wanted.work_id)
        self.traces.append(current_trace())


def work(work_id: str = "w") -> Work:
    return Work(work_id, "s", (1, 2, 3), 3, Sampling(), Limits(8))


class Scene:
    def __init__(self, limit_batches: int = 4096) -> None:
        self.engine, self.reads = SlowEngine(), NoReads()
        metrics = worker_metrics(CollectorRegistry(), model="m", role="decode", dp_rank=0)
        self.instance = DecodeInstance(self.engine, self.reads, metrics, 1, 64, lambda _work: [], limit_batches)  # type: ignore[arg-type]
        self.stream = self.instance.steps("s")

    async def admit(self, work_id: str = "w") -> "asyncio.Task[int]":
        request = DecodeRequest(work(work_id), TransferSource("p", "127.0.0.1:1", 1))
        task = asyncio.create_task(self.instance.admit(request))
        asked = len(self.engine.commands)
        await until(lambda: len(self.engine.commands) > asked or task.done())
        return task


async def test_work_whose_admission_nobody_waits_for_any_more_still_belongs_to_its_stream() -> None:
    """A caller that gave up during a long step: the engine takes the work all the same, and it must be cancellable."""
    scene = Scene()
    await anext(scene.stream)
    asking = await scene.admit()
    asking.cancel()
    await asyncio.wait({asking})
    scene.engine.turn()
    assert scene.engine.admitted == ["w"]
    scene.instance.on_events([Reserved("w", (0,), 0.0)])
    assert scene.reads.started == ["w"], "reserved blocks wait for a reader"
    await scene.stream.aclose()
    scene.engine.turn()
    assert scene.engine.cancelled == ["w"]


async def test_work_that_ended_with_its_handoff_is_forgotten() -> None:
    """Its first token was its last: decode joins nothing, and an idle instance must be able to drain."""
    scene = Scene()
    await anext(scene.stream)
    asking = await scene.admit()
    scene.engine.turn()
    await asking
    scene.instance.on_events([Reserved("w", (0,), 0.0)])
    scene.instance.joined("w", 0.0, over=True)
    assert not scene.instance.busy


async def test_a_scheduler_that_does_not_read_loses_its_work_at_once() -> None:
    """Without waiting until its transport has taken what is on the way."""
    scene = Scene(limit_batches=2)
    await anext(scene.stream)
    asking = await scene.admit()
    scene.engine.turn()
    await asking
    for position in range(3, 7):
        scene.instance.on_events([Tokens("w", (GeneratedToken(position, 1),), None)])
    scene.engine.turn()
    assert scene.engine.cancelled == ["w"]
    with pytest.raises(Refused):
        await (await scene.admit("next"))
    with pytest.raises(Overloaded):
        async for _ in scene.stream:
            pass


async def test_what_it_says_of_work_carries_the_trace_of_its_request(json_logs) -> None:
    scene = Scene()
    await anext(scene.stream)
    with tracing(trace := continued(None)):
        asking = await scene.admit()
        scene.engine.turn()
        await asking
    scene.instance.on_events([Reserved("w", (0,), 0.0)])
    scene.instance.on_events([Tokens("w", (GeneratedToken(3, 1),), FinishReason.LENGTH)])
    (line,) = json_logs()
    assert (line["event"], line["work_id"], line["trace_id"]) == ("decoded", "w", trace.trace_id)
    assert scene.reads.traces == [trace]  # and so does its call to prefill
