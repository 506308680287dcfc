"""The engine thread: takes commands from its inbox, steps the engine, delivers events."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from common.clock import Clock
from common.engine.runner import Runner
from common.engine.step_gate import StepGate
from common.errors import Draining, InternalError, TandemError
from common.parallel.waits import Waits, run

_IDLE_S = 0.1  # after that a group is no longer looked at but watched; a watch costs a thread, so not for every pause

Event = TypeVar("Event")
Result = TypeVar("Result")


class Engine(Protocol[Event]):
    gate: StepGate

    @property
    def steps(self) -> int: ...

    def has_work(self) -> bool: ...

    def step(self) -> Waits[list[Event]]: ...

    def fail_all(self, error: TandemError) -> list[Event]: ...


def follow(runner: Runner) -> None:
    """A rank that does not lead its instance: take every step the leader takes, until it ends in order."""
    while run(runner.follow()):
        pass


EngineT = TypeVar("EngineT", bound=Engine)  # type: ignore[type-arg]


class EngineLoop(Generic[EngineT, Event]):
    """Owns the one thread that touches an engine.

    Args:
        deliver: called on the engine thread with events in order; must only hand them on.
        poll_s: while the engine finds nothing to run, how often it looks again (leases and deadlines expire, other
            instances of the group wake up); a group that stays idle is watched instead.
        rest_s: how often an engine without work takes an empty step all the same, which tells the instance's other
            ranks and other instances that this one lives. In between it waits for a command or the group's call.
        at_end: called on the engine thread after an ordered end.
    """

    def __init__(
        self,
        engine: EngineT,
        deliver: Callable[[list[Event]], None],
        clock: Clock,
        *,
        name: str,
        poll_s: float = 0.005,
        rest_s: float = 1.0,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._clock = clock
        self._poll_s = poll_s
        self._rest_s = rest_s
        self._at_end = at_end
        self._stop_error: TandemError = Draining("the instance has shut down")
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # orders posting against the end of the inbox
        self._refusal: TandemError | None = None
        self._stop_at_s: float | None = None
        self._error: TandemError | None = None
        self._progress_s = self._active_s = clock.now_s()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Callable[[EngineT], Result]) -> "Future[Result]":
        """Run `command` on the engine thread between steps; the future carries its result or its TandemError.

        Raises:
            Draining: the loop is stopping.
            InternalError: the engine has failed.
        """
        future: Future[Result] = Future()

        def execute() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(command(self._engine))
            except TandemError as error:
                future.set_exception(error)
            finally:
                if not future.done():  # a bug of ours: the loop ends with it, and whoever waits here learns of it
                    future.set_exception(InternalError("the command broke the engine"))

        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._inbox.put(execute)
        return future

    def stop(self, drain_s: float) -> None:
        """Let work finish for up to `drain_s`, end the rest with an error, and join the thread.

        Commands are still taken while work is left, so that readers can release their leases; refusing new work
        meanwhile is the service's part. Instances of a group stop together: as long as any of them has work, all
        take its steps.
        """
        self._stop_at_s = self._clock.now_s() + drain_s
        self._nudge()
        self._thread.join()

    @property
    def error(self) -> TandemError | None:
        """Why the engine cannot go on; None while it can."""
        return self._error

    def progress_age_s(self) -> float:
        """Seconds since the loop last went round. Large when a step hangs; the health check's question."""
        return self._clock.now_s() - self._progress_s

    def _main(self) -> None:
        finished = False
        try:
            self._turn_until_stopped()
            finished = True
        except TandemError as error:  # a step that the engine cannot survive: typed, told to all, and the end
            self._error = error
        finally:
            if self._error is None and not finished:
                self._error = InternalError("the engine thread ended unexpectedly")
            self._close()
        if finished:
            self._at_end()

    def _turn_until_stopped(self) -> None:
        busy = True
        step_by_s = self._clock.now_s()
        while not self._is_over():
            self._take_commands(0.0 if busy else self._pause_s())
            self._progress_s = self._clock.now_s()
            if self._rests() and self._progress_s < step_by_s:
                busy = False
                continue
            step_by_s = self._progress_s + self._rest_s
            before = self._engine.steps
            events = run(self._engine.step())
            busy = bool(events) or self._engine.steps != before
            self._progress_s = self._clock.now_s()
            if busy:
                self._active_s = self._progress_s
            if events:
                self._deliver(events)

    def _nudge(self) -> None:
        """Wake the loop where it waits for a command."""
        self._inbox.put(lambda: None)

    def _rests(self) -> bool:
        return not self._engine.has_work() and not self._engine.gate.called()

    def _pause_s(self) -> float:
        """How long to wait for a command before the next look."""
        if self._engine.has_work():
            return self._poll_s
        if self._engine.gate.alone:
            return self._rest_s
        if self._clock.now_s() - self._active_s < _IDLE_S:
            return self._poll_s
        self._engine.gate.watch(self._nudge)
        return self._rest_s

    def _is_over(self) -> bool:
        if self._stop_at_s is None:
            return False
        return self._clock.now_s() >= self._stop_at_s or not (self._engine.has_work() or not self._inbox.empty())

    def _take_commands(self, wait_s: float) -> None:
        try:
            if wait_s:
                self._inbox.get(timeout=wait_s)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _close(self) -> None:
        """Answer everything that was ever accepted: commands still in the inbox, then work still in the engine."""
        with self._lock:
            self._refusal = self._error or self._stop_error
        self._take_commands(0.0)
        events = self._engine.fail_all(self._refusal)
        if events:
            self._deliver(events)
