"""The engine thread: commands in order, events delivered, failures told to everybody, an ordered end."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from common.clock import MonotonicClock
from common.engine.loop import EngineLoop
from common.engine.step_gate import AloneGate
from common.errors import Draining, InternalError, InvalidInput, TandemError
from common.parallel.lock_step import SchedulePolicy
from common.parallel.step_gate import LockStepGate
from common.parallel.waits import Waits
from tests.fakes.wake_flag import InProcessWakeFlag

WAIT_S = 10.0
REST_S = 1.0  # EngineLoop's own


class CountingEngine:
    """Every piece of work takes `left` steps, each an event."""

    def __init__(self) -> None:
        self.gate = AloneGate()
        self.looks = 0
        self.left = 0
        self.steps = 0
        self.fail: Callable[[], None] = lambda: None
        self.thread: int | None = None

    def has_work(self) -> bool:
        return self.left > 0

    def add(self, steps: int) -> int:
        if steps < 0:
            raise InvalidInput("steps", steps, "must not be negative")
        self.thread = threading.get_ident()
        self.left += steps
        return self.left

    def step(self) -> Waits[list[str]]:
        self.looks += 1
        yield
        self.fail()
        if not self.left:
            return []
        self.left -= 1
        self.steps += 1
        return [f"step {self.steps}"]

    def fail_all(self, error: TandemError) -> list[str]:
        ended, self.left = self.left, 0
        return [f"{error.reason} x {ended}"] if ended else []


Loop = EngineLoop[CountingEngine, str]


@pytest.fixture
def started() -> Iterator[tuple[Loop, "queue.SimpleQueue[str]"]]:
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    loop: Loop = EngineLoop(
        CountingEngine(), lambda batch: [events.put(event) for event in batch], MonotonicClock(), name="engine"
    )
    loop.start()
    yield loop, events
    loop.stop(drain_s=0)
    assert "engine" not in {thread.name for thread in threading.enumerate()}


def take(events: "queue.SimpleQueue[str]", count: int) -> list[str]:
    return [events.get(timeout=WAIT_S) for _ in range(count)]


def test_commands_run_on_the_engine_thread_and_answer(started) -> None:
    loop, events = started
    assert loop.post(lambda engine: engine.add(3)).result(WAIT_S) in range(1, 4)
    assert take(events, 3) == ["step 1", "step 2", "step 3"]
    assert loop.post(lambda engine: engine.thread).result(WAIT_S) != threading.get_ident()


def test_a_refused_command_carries_its_error_and_harms_nothing(started) -> None:
    loop, events = started
    with pytest.raises(InvalidInput, match="steps = -1"):
        loop.post(lambda engine: engine.add(-1)).result(WAIT_S)
    loop.post(lambda engine: engine.add(1))
    assert take(events, 1) == ["step 1"]
    assert loop.error is None


def test_an_idle_loop_still_goes_round(started) -> None:
    loop, _ = started
    for _ in range(3):
        loop.post(lambda engine: engine.steps).result(WAIT_S)
        assert loop.progress_age_s() < WAIT_S


def test_an_engine_without_work_rests(started) -> None:
    """Commands are answered at once and no step is taken: each would be a message to the instance's other ranks."""
    loop, events = started
    loop.post(lambda engine: engine.add(1)).result(WAIT_S)
    assert take(events, 1) == ["step 1"]
    looks = loop.post(lambda engine: engine.looks).result(WAIT_S)
    begun_s = time.monotonic()
    for _ in range(100):
        later = loop.post(lambda engine: engine.looks).result(WAIT_S)
    assert later - looks <= 1 + (time.monotonic() - begun_s) / REST_S


def test_a_resting_engine_still_shows_that_it_lives() -> None:
    loop: Loop = EngineLoop(CountingEngine(), lambda batch: None, MonotonicClock(), name="engine", rest_s=0.01)
    loop.start()
    first = loop.post(lambda engine: engine.looks).result(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while loop.post(lambda engine: engine.looks).result(WAIT_S) < first + 3:
        assert time.monotonic() < deadline_s
    loop.stop(drain_s=0)


def test_a_resting_engine_hears_its_group() -> None:
    """Another instance's work needs this one's experts, whether it has work or not."""
    flag = InProcessWakeFlag()
    engine = CountingEngine()
    engine.gate = LockStepGate(SchedulePolicy(2), flag)
    loop: Loop = EngineLoop(engine, lambda batch: None, MonotonicClock(), name="engine", rest_s=10 * WAIT_S)
    loop.start()
    first = loop.post(lambda engine: engine.looks).result(WAIT_S)
    flag.raise_for(0)
    deadline_s = time.monotonic() + WAIT_S
    while loop.post(lambda engine: engine.looks).result(WAIT_S) < first + 2:
        assert time.monotonic() < deadline_s
    loop.stop(drain_s=0)


def test_a_group_that_stays_idle_is_watched_and_not_looked_at() -> None:
    """128 instances that look every few milliseconds would keep the store of their flags busy."""
    flag = InProcessWakeFlag()
    engine = CountingEngine()
    gate = LockStepGate(SchedulePolicy(2), flag)
    engine.gate = gate
    watched = threading.Event()
    engine.gate.watch = lambda call: (LockStepGate.watch(gate, call), watched.set())  # type: ignore[method-assign]
    loop: Loop = EngineLoop(engine, lambda batch: None, MonotonicClock(), name="engine", rest_s=10 * WAIT_S)
    loop.start()
    assert watched.wait(WAIT_S)
    looks, steps_tried = flag.looks, engine.looks
    time.sleep(0.3)  # time for sixty looks
    assert flag.looks <= looks + 1
    flag.raise_for(0)
    deadline_s = time.monotonic() + WAIT_S
    while engine.looks == steps_tried:
        assert time.monotonic() < deadline_s
    loop.stop(drain_s=0)


def test_progress_stands_still_while_a_step_hangs(started) -> None:
    loop, events = started
    entered, hang = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        assert hang.wait(WAIT_S)

    loop.post(lambda engine: setattr(engine, "fail", block)).result(WAIT_S)
    assert entered.wait(WAIT_S)
    first = loop.progress_age_s()
    while loop.progress_age_s() <= first:
        pass
    loop.post(lambda engine: setattr(engine, "fail", lambda: None))
    hang.set()
    loop.post(lambda engine: engine.add(1)).result(WAIT_S)
    assert take(events, 1) == ["step 1"]


def test_a_step_the_engine_cannot_survive_is_told_to_all_work_and_to_whoever_asks_later(started) -> None:
    loop, events = started

    def broken() -> None:
        raise InternalError("the group is gone")

    def begin(engine: CountingEngine) -> None:
        engine.add(5)
        engine.fail = broken

    loop.post(begin).result(WAIT_S)
    assert take(events, 1) == ["INTERNAL x 5"]
    loop.stop(drain_s=0)
    assert isinstance(loop.error, InternalError)
    with pytest.raises(InternalError, match="the group is gone"):
        loop.post(lambda engine: engine.add(1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_exception_ends_work_typed_too(started) -> None:
    loop, events = started

    def bug() -> None:
        raise KeyError("a bug")

    def begin(engine: CountingEngine) -> None:
        engine.add(2)
        engine.fail = bug

    loop.post(begin)
    assert take(events, 1) == ["INTERNAL x 2"]
    loop.stop(drain_s=0)
    with pytest.raises(InternalError):
        loop.post(lambda engine: engine.add(1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_command_with_a_bug_is_answered(started) -> None:
    loop, _ = started
    with pytest.raises(InternalError, match="broke the engine"):
        loop.post(lambda engine: engine.no_such_command()).result(WAIT_S)


def test_stop_lets_work_finish(started) -> None:
    loop, events = started
    loop.post(lambda engine: engine.add(200)).result(WAIT_S)
    loop.stop(drain_s=WAIT_S)
    assert take(events, 200)[-1] == "step 200"
    assert events.empty()
    with pytest.raises(Draining):
        loop.post(lambda engine: engine.add(1))


def test_stop_ends_what_does_not_finish_in_time(started) -> None:
    loop, events = started
    loop.post(lambda engine: engine.add(10**9)).result(WAIT_S)
    loop.stop(drain_s=0.05)
    last = ""
    while not events.empty():
        last = events.get()
    assert last.startswith("DRAINING x")


def test_commands_accepted_before_the_end_are_answered(started) -> None:
    loop, _ = started
    futures = []
    ended = threading.Event()

    def post_until_refused() -> None:
        while True:
            try:
                futures.append(loop.post(lambda engine: engine.steps))
            except Draining:
                ended.set()
                return

    poster = threading.Thread(target=post_until_refused)
    poster.start()
    loop.stop(drain_s=0)
    assert ended.wait(WAIT_S)
    poster.join()
    assert all(isinstance(future.result(WAIT_S), int) for future in futures)
