"""Cancellations are neither lost in foreign code nor leave tasks behind."""

import asyncio

import pytest

from common.cancellation import all_ended, kept_cancellation


async def swallowing(entered: asyncio.Event) -> None:
    entered.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


@pytest.mark.parametrize("kept", [True, False])
async def test_a_swallowed_cancellation_is_raised(kept: bool) -> None:
    async def work() -> str:
        if kept:
            with kept_cancellation():
                await swallowing(entered)
        else:
            await swallowing(entered)
        return "went on"

    entered = asyncio.Event()
    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() is kept


async def test_an_error_in_its_place_does_not_hide_it() -> None:
    async def work() -> None:
        try:
            with kept_cancellation():
                await swallowing(entered)
                {}["missing"]
        except KeyError:
            return

    entered = asyncio.Event()
    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_timeout_inside_is_no_cancellation() -> None:
    with kept_cancellation():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        async with asyncio.timeout(0.001):
            await swallowing(asyncio.Event())


async def test_a_second_cancellation_leaves_no_task_behind() -> None:
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await cleaned.wait()

    async def owner() -> None:
        await asyncio.sleep(0)
        inner.cancel()
        await all_ended({inner})

    inner = asyncio.create_task(slow_to_end())
    task = asyncio.create_task(owner())
    await cleaning.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    cleaned.set()
    await asyncio.wait({task})
    assert inner.cancelled()
    assert task.cancelled()
