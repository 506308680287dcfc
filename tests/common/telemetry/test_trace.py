import asyncio

import pytest

from common.telemetry.trace import continued, current_trace, enter_trace, tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_trace_goes_on_under_a_span_of_our_own() -> None:
    trace = continued(f"00-{TRACE}-{SPAN}-01")
    assert (trace.trace_id, trace.flags) == (TRACE, 1)
    assert trace.span_id != SPAN
    assert trace.header() == f"00-{TRACE}-{trace.span_id}-01"
    assert continued(trace.header()).trace_id == TRACE


def test_a_later_version_may_say_more() -> None:
    assert continued(f"01-{TRACE}-{SPAN}-00-more").trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "junk",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_trace_is_replaced_by_a_new_one(header: str | None) -> None:
    first, second = continued(header), continued(header)
    assert len(first.trace_id) == 32
    assert TRACE not in {first.trace_id, second.trace_id}
    assert first.trace_id != second.trace_id
    assert continued(first.header()).trace_id == first.trace_id


async def test_tasks_work_for_the_request_they_were_started_for() -> None:
    one, other = continued(None), continued(None)

    async def seen() -> object:
        await asyncio.sleep(0)
        return current_trace()

    with tracing(one):
        first = asyncio.create_task(seen())
        with tracing(other):
            second = asyncio.create_task(seen())
        third = asyncio.create_task(seen())
    assert current_trace() is None
    assert await asyncio.gather(first, second, third) == [one, other, one]

    async def enters() -> None:
        enter_trace(one)
        assert await asyncio.create_task(seen()) == one

    await asyncio.create_task(enters())
    assert current_trace() is None
