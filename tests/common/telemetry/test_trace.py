import asyncio

import pytest

from common.telemetry.trace import Trace, continued, current_trace, enter_trace, named_trace, tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_trace_goes_on_under_a_span_of_our_own() -> None:
    named = named_trace(f"00-{TRACE}-{SPAN}-01", ["a=1"])
    assert named == Trace(TRACE, SPAN, 1, "a=1")
    trace = continued(named)
    assert trace == Trace(TRACE, trace.span_id, 1, "a=1")
    assert trace.span_id != SPAN
    assert trace.headers() == (("traceparent", f"00-{TRACE}-{trace.span_id}-01"), ("tracestate", "a=1"))
    assert named_trace(*by_name(trace)) == trace
    assert continued(None).headers()[1:] == ()


def test_a_later_version_may_say_more() -> None:
    assert named_trace(f"01-{TRACE}-{SPAN}-00-more", []) == Trace(TRACE, SPAN, 0)


LONG = f"long={'x' * 200}"
SHORT = [f"k{n:02}={'x' * 46}" for n in range(12)]  # of 50 characters, and a comma


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        ([], ""),
        ([""], ""),
        (["a=1"], "a=1"),
        (["a=1,b=2 \t,  c=3", "d=4,,"], "a=1,b=2,c=3,d=4"),
        (["t61rcWkgMzE@vendor=v".lower(), "0a_-*/@z=a b!~"], "t61rcwkgmze@vendor=v,0a_-*/@z=a b!~"),
        ([f"a={'x' * 256}"], f"a={'x' * 256}"),
        ([f"a={'x' * 257}"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=1=2"], ""),
        (["a=caf\u00e9"], ""),
        (["a=1\x7f"], ""),
        (["a=1", "junk"], ""),
        (["a=1,b=2", "a=3"], ""),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
        ([",".join(f"k{n}=1" for n in range(33))], ""),
        ([",".join([LONG, *SHORT[:6]])], ",".join([LONG, *SHORT[:6]])),
        ([",".join([LONG, *SHORT[:7]])], ",".join(SHORT[:7])),
        ([",".join([*SHORT, LONG])], ",".join(SHORT[:10])),
    ],
)
def test_the_state_goes_along_as_it_came_if_it_is_one(states: list[str], kept: str) -> None:
    trace = named_trace(f"00-{TRACE}-{SPAN}-01", states)
    assert trace is not None
    assert trace.state == kept
    assert named_trace(*by_name(trace)) == trace


def test_a_state_without_its_parent_is_nobodys() -> None:
    assert named_trace(None, ["a=1"]) is None
    assert named_trace("junk", ["a=1"]) is None


def by_name(trace: Trace) -> tuple[str, list[str]]:
    headers = dict(trace.headers())
    return headers["traceparent"], [headers["tracestate"]] if "tracestate" in headers else []


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
    named = named_trace(header, [])
    assert named is None
    first, second = continued(named), continued(named)
    assert len(first.trace_id) == 32
    assert first.trace_id != second.trace_id
    assert named_trace(*by_name(first)) == first


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
