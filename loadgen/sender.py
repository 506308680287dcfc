"""A sender process: sends its share of the schedule at the scheduled moments, whatever the answers do.

Monotonic time is one clock for all processes of a host, so every sender works from the same start.
"""

import asyncio
import gc
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from common.errors import TandemError
from common.rpc.inference_data import Usage
from common.rpc.timed_generate import Stamped, TimedInference, parse_delta
from loadgen.record import CLIENT_TIMEOUT, COUNT_MISMATCH, NO_USAGE, OK, SHORT, Record
from loadgen.workload import Planned

LOOP_PROBE_S = 0.01
CONNECT_TIMEOUT_S = 30.0
# Several connections share the load of flow control and of the peer's event loop.
CHANNELS = 4
# Messages read at a stretch before other requests' arrivals get their turn: well under a millisecond.
READ_MESSAGES = 32


@dataclass(frozen=True, slots=True)
class Share:
    """One sender's part of a run."""

    sender: int
    address: str
    requests: tuple[Planned, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SenderReady:
    """Connected; waits for the start."""

    sender: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class SenderDone:
    """`loop_lags_s` says how late the event loop woke from each 10 ms sleep; `cpu_share` is of one core."""

    sender: int
    loop_lags_s: tuple[float, ...]
    cpu_share: float


Message = SenderReady | Record | SenderDone


def run_sender(share: Share, pipe: Connection) -> None:
    """Body of the process: sends `SenderReady`, receives the start (monotonic), sends records, then `SenderDone`."""
    asyncio.run(_run(share, pipe))
    pipe.close()


async def _run(share: Share, pipe: Connection) -> None:
    channels = [TimedInference(share.address) for _ in range(CHANNELS)]
    try:
        await asyncio.gather(*(channel.ready(CONNECT_TIMEOUT_S) for channel in channels))
    except TimeoutError:
        pipe.send(SenderReady(share.sender, f"{share.address} did not answer in {CONNECT_TIMEOUT_S:.0f} s"))
        return
    pipe.send(SenderReady(share.sender))
    start_s: float = await asyncio.to_thread(pipe.recv)
    # Collections then pass over the schedule: a long pause would show as latency of the server.
    gc.collect()
    gc.freeze()
    lags: list[float] = []
    probe = asyncio.create_task(_probe_loop(lags))
    cpu_before_s, wall_before_s = time.process_time(), time.monotonic()
    calls = set[asyncio.Task[None]]()
    for position, planned in enumerate(share.requests):
        await _until(start_s + planned.at_s)
        channel = channels[position % CHANNELS]
        call = asyncio.create_task(_one(channel, planned, start_s, share.timeout_s, pipe))
        calls.add(call)
        call.add_done_callback(calls.discard)
    if calls:
        await asyncio.gather(*calls)
    probe.cancel()
    wall_s = max(time.monotonic() - wall_before_s, 1e-9)
    pipe.send(SenderDone(share.sender, tuple(lags), (time.process_time() - cpu_before_s) / wall_s))
    await asyncio.gather(*(channel.close() for channel in channels))


async def _until(moment_s: float) -> None:
    wait_s = moment_s - time.monotonic()
    if wait_s > 0:
        await asyncio.sleep(wait_s)


async def _probe_loop(lags: list[float]) -> None:
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(LOOP_PROBE_S)
        lags.append(time.monotonic() - before_s - LOOP_PROBE_S)


async def _one(channel: TimedInference, planned: Planned, start_s: float, timeout_s: float, pipe: Connection) -> None:
    """One request from send to end. Its messages are read when it has ended."""
    arrived: list[Stamped] = []
    error = message = OK
    sent_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            async for stamped in channel.generate(planned.payload, None):
                arrived.append(stamped)
    except TandemError as failure:
        error, message = failure.reason, str(failure)
    except TimeoutError:
        error, message = CLIENT_TIMEOUT, f"no end within {timeout_s} s"
    ended_s = time.monotonic()
    arrivals_s: list[float] = []
    arrival_tokens: list[int] = []
    usage: Usage | None = None
    request_id = ""
    for number, (at_s, wire) in enumerate(arrived, start=1):
        delta = parse_delta(wire)
        request_id = delta.request_id
        usage = delta.usage or usage
        if delta.token_ids:
            arrivals_s.append(at_s - start_s)
            arrival_tokens.append(len(delta.token_ids))
        if number % READ_MESSAGES == 0:
            await asyncio.sleep(0)
    if not error:
        error, message = broken_promise(planned.output_tokens, sum(arrival_tokens), usage)
    usage = usage or Usage(completion_tokens=sum(arrival_tokens))
    record = Record(
        index=planned.index,
        scheduled_s=planned.at_s,
        sent_s=sent_s - start_s,
        ended_s=ended_s - start_s,
        arrivals_s=tuple(arrivals_s),
        arrival_tokens=tuple(arrival_tokens),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        request_id=request_id,
        error=error,
        message=message,
    )
    pipe.send(record)


def broken_promise(asked_tokens: int, arrived_tokens: int, usage: Usage | None) -> tuple[str, str]:
    """(reason, message) of what is wrong with a stream that ended without an error; both empty when all is well."""
    if usage is None:
        return NO_USAGE, "the last message carries no usage"
    if usage.completion_tokens != arrived_tokens:
        return COUNT_MISMATCH, f"usage says {usage.completion_tokens} tokens, {arrived_tokens} arrived"
    if arrived_tokens != asked_tokens:
        return SHORT, f"{arrived_tokens} tokens, {asked_tokens} were asked for"
    return OK, OK
