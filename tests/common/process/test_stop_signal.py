import asyncio
import os
import signal

import pytest

from common.errors import Cancelled
from common.process.stop_signal import stop_signal, unless_stopped


@pytest.fixture
async def stop():
    signals = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in signals]
    yield stop_signal()
    for number, handler in zip(signals, before, strict=True):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, handler)


async def test_the_same_signal_again_means_at_once(stop) -> None:
    async with asyncio.timeout(10):
        os.kill(os.getpid(), signal.SIGINT)
        await stop.asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)  # the pod's, which follows a terminal's
        while signal.SIGTERM not in stop.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not stop.at_once.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.at_once.wait()


async def test_what_is_waited_for_is_given_or_given_up() -> None:
    stop = asyncio.Event()

    async def soon() -> int:
        return 5

    assert await unless_stopped(stop, "soon", soon()) == 5
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(unless_stopped(stop, "the moon", never()))
    await asyncio.sleep(0)
    stop.set()
    with pytest.raises(Cancelled, match="asked to end while waiting for the moon"):
        await waiting
    assert ended.is_set()
