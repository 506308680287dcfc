"""An instance is live while all of its threads go round, and says which one does not."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from common.clock import ManualClock
from common.engine.loop import EngineLoop
from common.errors import InternalError
from common.transfer.landing import HostLanding
from common.transfer.memory import tensor_region
from common.transfer.reader import ReaderLimits, TransferReader
from common.worker.liveness import Liveness
from tests.common.engine.test_loop import CountingEngine

WAIT_S = 10.0
STALLED_AFTER_S = 1.0
REST_S = 0.02
HANGS = re.compile(r"the transfer reader made no progress for \d+\.\d s, more than 1 s")


@dataclass
class Held:
    """A transfer's outcome that its hearer keeps waiting."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def stopped(self, _work_id: str) -> None:
        self.reached.set()
        assert self.go_on.wait(WAIT_S)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go_on.set()


@pytest.fixture
def reader(held: Held) -> Iterator[TransferReader]:
    memory = torch.zeros(2, 1024)
    landing = HostLanding(memory, memory.clone(), 0)
    reader = TransferReader("r", tensor_region(memory), 4096, landing, held, ReaderLimits(), rest_s=REST_S)  # type: ignore[arg-type]
    yield reader
    held.go_on.set()
    reader.close()


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.002)


def test_a_reader_that_hangs_is_not_live_and_one_that_rests_is(reader: TransferReader, held: Held) -> None:
    resting: EngineLoop[CountingEngine, str] = EngineLoop(CountingEngine(), lambda batch: None, ManualClock(), name="e")
    live = Liveness(resting, STALLED_AFTER_S, {"transfer reader": reader.progress_age_s})
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 1.5 * STALLED_AFTER_S:
        assert live.fault() is None  # nothing to do is no fault, however long
        time.sleep(STALLED_AFTER_S / 20)
    reader.abort("w")
    assert held.reached.wait(WAIT_S)
    until(live.fault)
    assert reader.alive
    assert HANGS.fullmatch(live.fault() or "")
    held.go_on.set()
    until(lambda: live.fault() is None)


def test_an_engine_that_hangs_or_died_says_so() -> None:
    clock = ManualClock()
    loop: EngineLoop[CountingEngine, str] = EngineLoop(CountingEngine(), lambda batch: None, clock, name="engine")
    live = Liveness(loop, 10.0)
    assert live.fault() is None
    clock.advance(10.5)
    assert live.fault() == "the engine made no progress for 10.5 s, more than 10 s"

    def fail() -> None:
        raise InternalError("a step broke")

    loop.start()
    loop.post(lambda engine: setattr(engine, "fail", fail)).result(WAIT_S)
    loop.post(lambda engine: engine.add(1)).result(WAIT_S)
    until(lambda: loop.error is not None)
    assert live.fault() == "the engine died: a step broke"
    loop.stop(drain_s=0)
