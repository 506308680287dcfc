import threading
from dataclasses import replace

import numpy as np
import pytest

from common.errors import Cancelled, Incompatible, LeaseLost
from common.request import Compatibility, GeneratedToken, Handoff, ReadyBlock
from common.transfer.agent import SourceAgent
from common.transfer.memory import host_region
from common.transfer.source import TransferSource

COMPATIBILITY = Compatibility("fp", "c1", "float32", 4, 3, 8, 1)
HANDOFF = Handoff(GeneratedToken(position=9, token_id=1))
BLOCKS = [ReadyBlock(index, 10 + index, 100 + index, b"", 4) for index in range(5)]


class Leases:
    """Stands for the engine."""

    def __init__(self):
        self.calls = []

    def release_lease(self, work_id):
        self.calls.append(("release", work_id))

    def renew_lease(self, work_id):
        self.calls.append(("renew", work_id))


@pytest.fixture(scope="module")
def agent():
    pool = np.zeros(1024, dtype=np.int32)
    agent = SourceAgent("source-under-test", host_region(pool))
    yield agent
    agent.close()


@pytest.fixture
def leases():
    return Leases()


@pytest.fixture
def source(agent, leases):
    return TransferSource(agent, 7, 512, COMPATIBILITY, leases)


def test_late_subscriber_sees_everything_from_the_beginning(source, agent):
    source.open("w", blocks=5)
    source.announce("w", BLOCKS[:2])
    stream = source.subscribe("w", 7, COMPATIBILITY, first_block=1)
    assert stream.hello == replace(source.hello, blocks=5)
    assert stream.hello.pool_address == agent.pool.address
    assert stream.wait(0)
    assert stream.take() == [(BLOCKS[1],)]
    assert not stream.wait(0)
    source.announce("w", BLOCKS[2:])
    source.handoff("w", HANDOFF)
    assert stream.take() == [tuple(BLOCKS[2:]), HANDOFF]
    assert stream.take() == []


def test_blocks_that_the_reader_has_are_left_out(source):
    source.open("w", blocks=5)
    stream = source.subscribe("w", 7, COMPATIBILITY, first_block=5)
    source.announce("w", BLOCKS)
    assert stream.take() == []
    source.handoff("w", HANDOFF)
    assert stream.take() == [HANDOFF]


def test_only_the_reader_in_charge_renews_and_releases(source, leases):
    source.open("w", blocks=5)
    first = source.subscribe("w", 7, COMPATIBILITY, 0)
    assert first.renew()
    second = source.subscribe("w", 7, COMPATIBILITY, 0)
    (error,) = first.take()
    assert isinstance(error, LeaseLost)
    assert not first.release()
    assert not first.renew()
    source.announce("w", BLOCKS[:1])
    assert first.take() == []
    assert second.take() == [(BLOCKS[0],)]
    assert second.release()
    assert not second.release()
    assert leases.calls == [("renew", "w"), ("release", "w")]
    assert len(source) == 0


def test_end_by_the_engine_reaches_the_reader_and_frees_nothing_twice(source, leases):
    source.open("w", blocks=5)
    stream = source.subscribe("w", 7, COMPATIBILITY, 0)
    source.end("w", Cancelled("client left"))
    (error,) = stream.take()
    assert isinstance(error, Cancelled)
    assert not stream.release()
    source.announce("w", BLOCKS)
    source.end("w", Cancelled("again"))
    assert stream.take() == []
    assert leases.calls == []


def test_what_cannot_be_read_is_refused(source):
    with pytest.raises(LeaseLost, match="no lease for w"):
        source.subscribe("w", 7, COMPATIBILITY, 0)
    source.open("w", blocks=1)
    with pytest.raises(LeaseLost, match="incarnation 0x8"):
        source.subscribe("w", 8, COMPATIBILITY, 0)
    with pytest.raises(Incompatible) as raised:
        source.subscribe("w", 7, replace(COMPATIBILITY, block_tokens=16), 0)
    assert raised.value.field == "block_tokens"
    source.close(LeaseLost("shutting down"))
    assert len(source) == 0


def test_announcements_cross_threads_in_order(source):
    source.open("w", blocks=500)
    blocks = [replace(BLOCKS[0], index=index) for index in range(500)]
    stream = source.subscribe("w", 7, COMPATIBILITY, 0)
    calls = []
    stream.call_when_ready(lambda: calls.append(threading.get_ident()))

    def announce():
        for block in blocks:
            source.announce("w", [block])
        source.handoff("w", HANDOFF)

    thread = threading.Thread(target=announce)
    thread.start()
    taken = []
    while HANDOFF not in taken:
        assert stream.wait(10.0)
        taken += stream.take()
    thread.join()
    assert taken == [(block,) for block in blocks] + [HANDOFF]
    assert calls
    assert threading.get_ident() not in calls
