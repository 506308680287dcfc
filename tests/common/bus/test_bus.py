import asyncio
import os
import signal
import time

import nats
import pytest
from prometheus_client import CollectorRegistry

from common.bus.connection import connect_bus
from common.bus.exported import exported_bus
from common.bus.load_reporter import LoadReporter
from common.bus.messages import CancelNotice, DrainNotice, HoldNotice, LoadReport, decode, encode
from common.bus.sequence_gate import SequenceGate
from common.bus.subjects import Subjects
from common.errors import ConfigError, DependencyUnavailable, InternalError, InvalidInput
from tests.servers import aborted


async def until(condition, within_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0.01)


@pytest.fixture
async def pair(nats_url):
    """Two connections: one that speaks, one that hears."""
    buses = [await connect_bus(nats_url, name, 5.0, 10.0) for name in ("speaker", "hearer")]
    yield buses
    for bus in buses:
        await bus.close()


async def test_messages_arrive_typed_and_only_where_asked_for(pair, cluster):
    speaker, hearer = pair
    subjects, heard = Subjects(cluster), []
    await hearer.subscribe(subjects.all_loads, LoadReport, heard.append)
    await hearer.subscribe(subjects.all_drains, DrainNotice, heard.append)
    await hearer.subscribe(subjects.cancel, CancelNotice, heard.append)
    await hearer.flush(5.0)
    reporter = LoadReporter(speaker, subjects, "p-0", 2**62 + 1)
    assert await reporter.report({"queued": 3, "step_s": 0.25})
    assert await LoadReporter(speaker, Subjects(f"{cluster}x"), "p-0", 1).report({})
    assert await speaker.publish(subjects.drain("p-0"), DrainNotice("p-0", 7))
    assert await speaker.publish(subjects.cancel, CancelNotice("w1"))
    assert await reporter.report({"queued": 0, "step_s": 0.5})
    await until(lambda: len(heard) >= 4)
    assert [said for said in heard if isinstance(said, LoadReport)] == [
        LoadReport("p-0", 2**62 + 1, 1, {"queued": 3, "step_s": 0.25}),
        LoadReport("p-0", 2**62 + 1, 2, {"queued": 0, "step_s": 0.5}),
    ]
    assert DrainNotice("p-0", 7) in heard
    assert CancelNotice("w1") in heard


async def test_malformed_messages_are_counted_and_disturb_nobody(pair, cluster, nats_url):
    _, hearer = pair
    subject, heard = Subjects(cluster).cancel, []
    await hearer.subscribe(subject, CancelNotice, heard.append)
    await hearer.flush(5.0)
    raw = await nats.connect(nats_url)
    for data in (b"\xff", b"[]", b'{"work_id": 5}', b"{}", encode(CancelNotice("good"))):
        await raw.publish(subject, data)
    await raw.close()
    await until(lambda: heard)
    assert heard == [CancelNotice("good")]
    registry = CollectorRegistry()
    registry.register(exported_bus(hearer.counters, {"model": "m"}))
    outcomes = {"published": 0, "unpublished": 0, "received": 1, "malformed": 4, "overrun": 0, "broken": 0}
    for outcome, count in outcomes.items():
        labels = {"model": "m", "outcome": outcome}
        assert registry.get_sample_value("tandem_bus_messages_total", labels) == count


async def test_a_fault_in_handling_is_counted_and_said_and_ends_nothing(pair, cluster, caplog):
    speaker, listener = pair
    subjects, heard = Subjects(cluster), []

    def hear(notice: CancelNotice) -> None:
        if notice.work_id == "bad":
            raise KeyError("ours")
        heard.append(notice)

    await listener.subscribe(subjects.cancel, CancelNotice, hear)
    await listener.flush(5.0)
    for work_id in ("bad", "good"):
        await speaker.publish(subjects.cancel, CancelNotice(work_id))
    await until(lambda: heard)
    assert heard == [CancelNotice("good")]
    assert listener.counters.broken == 1
    (said,) = [record for record in caplog.records if record.getMessage() == "what came on the bus was not handled"]
    assert said.exc_info is not None
    assert said.exc_info[0] is KeyError


async def test_a_missing_right_is_said_once(own_nats, cluster, tmp_path, caplog):
    file = tmp_path / "rights.conf"
    file.write_text('authorization { users: [{user: u, password: p, permissions: {publish: "other.>"}}] }')
    server = own_nats("--config", str(file))
    bus = await connect_bus(server.url.replace("://", "://u:p@"), "mute", 5.0, 10.0)
    for _ in range(3):
        await bus.publish(Subjects(cluster).cancel, CancelNotice("w"))
    await bus.flush(5.0)
    (said,) = [record for record in caplog.records if record.getMessage() == "NATS refuses"]
    assert "permissions violation" in str(vars(said)).lower()
    await bus.close()


async def test_bus_comes_back_by_itself_with_its_subscriptions(own_nats, cluster):
    """Scenario 11: while NATS is away nothing is kept, so nothing piles up; then new messages flow again."""
    server = own_nats()
    bus, hearer = [await connect_bus(server.url, name, 5.0, 10.0) for name in ("speaker", "hearer")]
    subjects, heard = Subjects(cluster), []
    await hearer.subscribe(subjects.cancel, CancelNotice, heard.append)
    port, directory = server.port, server._log.parent
    server.stop()
    await until(lambda: not bus.connected)
    for number in range(1000):
        assert not await bus.publish(subjects.cancel, CancelNotice(f"lost{number}"))
    server.start(port, directory)
    await until(lambda: bus.connected and hearer.connected)
    await hearer.flush(5.0)
    assert await bus.publish(subjects.cancel, CancelNotice("after"))
    await until(lambda: heard)
    assert heard == [CancelNotice("after")]
    registry = CollectorRegistry()
    registry.register(exported_bus(bus.counters, {}))
    assert registry.get_sample_value("tandem_bus_messages_total", {"outcome": "unpublished"}) == 1000
    assert registry.get_sample_value("tandem_bus_disconnects_total") == 1
    for one in (bus, hearer):
        await one.close()


async def test_silent_server_is_noticed(own_nats):
    server = own_nats()
    bus = await connect_bus(server.url, "one", 1.0, 10.0, ping_s=0.2)
    os.kill(server.pid, signal.SIGSTOP)
    await until(lambda: not bus.connected)
    os.kill(server.pid, signal.SIGCONT)
    await until(lambda: bus.connected)
    await bus.close()


async def test_a_stopped_server_holds_neither_a_close_nor_a_cancellation_nor_an_error(own_nats, cluster, caplog):
    """It takes nothing, so what was said piles up here. Nobody may wait for that, and nothing may be lost over it."""
    server, subject = own_nats(), Subjects(cluster).cancel
    bus = await connect_bus(server.url, "one", 1.0, 10.0, ping_s=60.0)
    os.kill(server.pid, signal.SIGSTOP)
    said = 0

    async def say() -> None:
        nonlocal said
        while True:
            await bus.publish(subject, CancelNotice("w" * 60_000))
            said += 1

    async def end() -> None:
        try:
            raise InternalError("ours")
        finally:
            await bus.close()

    saying, before = asyncio.create_task(say()), -1
    while said > before:  # until it waits for the server
        before = said
        await asyncio.sleep(0.2)
    saying.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({saying})
        assert saying.cancelled()
        with pytest.raises(InternalError, match="ours"):
            await end()
    assert "NATS did not take what was said last" in caplog.text
    os.kill(server.pid, signal.SIGCONT)
    await aborted(bus._client._transport._io_writer)


async def test_one_server_of_several_is_enough(own_nats, cluster):
    gone, there = own_nats(), own_nats()
    gone.stop()
    for url in (f"{gone.url},{there.url}", f"{there.url}, {gone.url}"):
        bus = await connect_bus(url, "hearer", 2.0, 10.0)
        assert bus.connected
        await bus.close()


async def test_absent_nats_is_a_bounded_wait_that_says_so(caplog):
    started_s = time.monotonic()
    with pytest.raises(DependencyUnavailable, match=r"no NATS at nats://127.0.0.1:1 within 0.5 s"):
        await connect_bus("nats://127.0.0.1:1", "one", timeout_s=1.0, within_s=0.5)
    assert time.monotonic() - started_s < 10
    assert "waiting for NATS" in caplog.text


def test_gate_lets_only_news_through():
    """Scenario 12: loss, repetition and reordering."""
    missed: list[int] = []
    refused: list[None] = []
    gate = SequenceGate(missed.append, lambda: refused.append(None))
    sent = [(1, 4), (1, 5), (1, 5), (1, 8), (1, 7), (2, 2), (1, 9), (2, 3)]
    assert [gate.admit("p", *one) for one in sent] == [True, True, False, True, False, True, False, True]
    assert sum(missed) == 2
    assert len(refused) == 3
    assert gate.admit("q", 1, 1)


def test_message_with_unknown_fields_is_read_and_with_a_wrong_one_named():
    assert decode(DrainNotice, b'{"instance": "a", "incarnation": 3, "since": 1}') == DrainNotice("a", 3)
    assert decode(HoldNotice, encode(HoldNotice("a", 3, 1.5))) == HoldNotice("a", 3, 1.5)
    with pytest.raises(InvalidInput) as raised:
        decode(LoadReport, b'{"instance": "a", "incarnation": 3, "sequence": 1, "load": {"queued": "x"}}')
    assert raised.value.field == "LoadReport.load.queued"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">"])
def test_name_that_is_no_token_is_refused(name):
    with pytest.raises(ConfigError, match="NATS subject"):
        Subjects("c").load(name)
