"""One run: start the sender processes, give them one start, gather what they saw."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from common.errors import DependencyUnavailable, InternalError
from loadgen.record import Record
from loadgen.sender import Message, SenderDone, SenderReady, Share, run_sender
from loadgen.workload import Planned

# Between the order to start and the first arrival, so that the order reaches every sender in time.
HEAD_START_S = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """Records in the order in which requests ended, and how well each sender kept up."""

    records: tuple[Record, ...]
    senders: tuple[SenderDone, ...]
    wall_s: float


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
    try:
        for number, mine in enumerate(deal(requests, senders)):
            here, there = context.Pipe()
            share = Share(number, address, mine, timeout_s)
            process = context.Process(target=run_sender, args=(share, there), name=f"sender-{number}", daemon=True)
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
        records, done = _gather(pipes, progress)
        return Outcome(tuple(records), tuple(done), time.monotonic() - start_s)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(timeout=5.0)
            if process.is_alive():
                process.terminate()
                process.join()


def _gather(pipes: list[Connection], progress: Callable[[Record], None]) -> tuple[list[Record], list[SenderDone]]:
    records: list[Record] = []
    done: list[SenderDone] = []
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
    return records, done


def _receive(pipe: Connection) -> Message:
    try:
        message: Message = pipe.recv()
    except EOFError as error:
        raise InternalError("a sender process ended before its requests did") from error
    return message
