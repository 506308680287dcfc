"""One run: start the sender processes, give them one start, gather what they saw."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from common.errors import DependencyUnavailable, InternalError
from loadgen.record import Record
from loadgen.sender import Message, SenderDone, SenderReady, Share, run_sender
from loadgen.workload import Planned

# Between the order to start and the first arrival, so that the order reaches every sender in time.
HEAD_START_S = 0.25
_JOIN_S = 5.0  # for a sender that is done


@dataclass(frozen=True, slots=True)
class Outcome:
    """Records in the order in which requests ended, and how well each sender kept up."""

    records: tuple[Record, ...]
    senders: tuple[SenderDone, ...]
    wall_s: float
    interrupted: bool = False  # by Ctrl-C: records are of the requests that had ended by then


def deal(requests: tuple[Planned, ...], senders: int) -> list[tuple[Planned, ...]]:
    """Every n-th request to one sender: each sees the same shape of load at a fraction of the rate."""
    return [requests[first::senders] for first in range(senders)]


def run(
    address: str,
    requests: tuple[Planned, ...],
    senders: int,
    timeout_s: float,
    progress: Callable[[Record], None] = lambda _record: None,
) -> Outcome:
    """Send `requests` to `address` and wait for every answer. `progress` is called for each that ended."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    process: BaseProcess
    join_s = 0.0  # who fails or is interrupted waits for nobody
    try:
        for number, mine in enumerate(deal(requests, senders)):
            here, there = context.Pipe()
            share = Share(number, address, mine, timeout_s)
            process = context.Process(target=run_sender, args=(share, there), name=f"sender-{number}", daemon=True)
            with _ctrl_c_held_back():
                process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            ready = _receive(pipe)
            if isinstance(ready, SenderReady) and ready.error:
                raise DependencyUnavailable(ready.error)
        start_s = time.monotonic() + HEAD_START_S
        for pipe in pipes:
            pipe.send(start_s)
        records: list[Record] = []
        done: list[SenderDone] = []
        try:
            _gather(pipes, progress, records, done)
            join_s = _JOIN_S
        except KeyboardInterrupt:
            return Outcome(tuple(records), tuple(done), time.monotonic() - start_s, interrupted=True)
        return Outcome(tuple(records), tuple(done), time.monotonic() - start_s)
    finally:
        for process in processes:
            process.join(join_s)
            if process.is_alive():
                process.terminate()
                process.join()
        for pipe in pipes:
            pipe.close()


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """A process that is started within never hears the terminal's Ctrl-C: who started it decides when it ends."""
    resource_tracker.ensure_running()  # its own start would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _gather(
    pipes: list[Connection], progress: Callable[[Record], None], records: list[Record], done: list[SenderDone]
) -> None:
    """Fill `records` and `done` until every sender is done."""
    open_pipes = list(pipes)
    while open_pipes:
        for pipe in wait(open_pipes):
            assert isinstance(pipe, Connection)
            message = _receive(pipe)
            if isinstance(message, Record):
                records.append(message)
                progress(message)
            elif isinstance(message, SenderDone):
                done.append(message)
                open_pipes.remove(pipe)


def _receive(pipe: Connection) -> Message:
    try:
        message: Message = pipe.recv()
    except EOFError as error:
        raise InternalError("a sender process ended before its requests did") from error
    return message
