"""Code that may have to wait for other ranks, written once for a process per rank and for many ranks in one process.

A rank's work is a generator that yields wherever it is about to wait for data from other ranks and returns its result.
A process that holds one rank drives its generator straight through: the wait then happens inside the receive call. A
process that holds many ranks advances them in turn, so that every send is out before any receive is tried.
"""

from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Waits = Generator[None, None, T]


def ready(value: T) -> Waits[T]:
    """Work that is done already: it waits for nothing."""
    yield from ()
    return value


def run(work: Waits[T]) -> T:
    """Drive one rank to its end; receives block."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def run_together(ranks: Sequence[Waits[T]]) -> list[T]:
    """Drive all ranks of a group in one process: each runs to its next wait before any passes it.

    Raises:
        RuntimeError: when ranks disagree on the number of waits, which in separate processes would be a hang.
    """
    results: list[T] = []
    live = list(ranks)
    while live:
        ended = []
        for work in live:
            try:
                next(work)
            except StopIteration as end:
                ended.append(end.value)
        if ended:
            if len(ended) != len(live):
                raise RuntimeError(f"{len(ended)} of {len(live)} ranks ended while the others still wait")
            results = ended
            live = []
    return results
