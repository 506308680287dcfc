from collections import Counter

import pytest

from common.clock import ManualClock
from common.errors import ConfigError, DependencyUnavailable, WorkerLost
from common.parallel.heartbeat import ParkedPeers, PeerWatch, StoreHeartbeats
from common.parallel.rendezvous import Store, connect_store, host_store
from common.parallel.wake_flag import StoreWakeFlag


def test_a_silent_peer_is_lost_after_the_limit() -> None:
    watch = PeerWatch(limit_s=2.0).saw((1, 1, 1), now_s=0.0)
    watch = watch.saw((2, 1, 2), now_s=1.5)
    assert watch.lost(1.9) == ()
    assert watch.lost(2.5) == (1,)
    assert watch.saw((2, 2, 2), now_s=2.6).lost(3.0) == ()
    assert watch.lost(9.0) == (0, 1, 2)


def unused() -> Store:
    raise AssertionError("nobody waits here")


def test_beats_and_flags_in_a_store() -> None:
    served = host_store("127.0.0.1", 0, timeout_s=10)
    mine, theirs = served, connect_store("127.0.0.1", served.port, timeout_s=10)
    beats = [StoreHeartbeats(store, "decode-0", rank, 2) for rank, store in enumerate((mine, theirs))]
    beats[1].beat()
    beats[1].beat()
    beats[0].beat()
    assert beats[0].read() == beats[1].read() == (1, 2)
    flags = [StoreWakeFlag(store, "decode-0", unused) for store in (mine, theirs)]
    assert not flags[0].is_raised_for(7)
    flags[1].raise_for(7)
    flags[0].raise_for(7)
    assert flags[0].is_raised_for(7)
    assert not flags[0].is_raised_for(8)
    assert not StoreWakeFlag(mine, "decode-1", unused).is_raised_for(7)


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.asked[name] += 1
        return getattr(self._store, name)


def test_a_look_at_all_peers_costs_one_request() -> None:
    """In a group of 128 instances all look a few times a minute, and one store answers them."""
    ranks, clock = 128, ManualClock()
    store = Counting(host_store("127.0.0.1", 0, timeout_s=10))
    beats = [StoreHeartbeats(store, "decode-0", rank, ranks) for rank in range(ranks)]  # type: ignore[arg-type]
    assert beats[0].read() == (0,) * ranks
    for rank in (0, 5, 5, 127):
        beats[rank].beat()
    peers = ParkedPeers(beats[3], clock, limit_s=4.0)
    store.asked.clear()
    peers.parked()
    assert store.asked == {"add": 1, "multi_get": 1}
    assert beats[9].read() == tuple({0: 1, 3: 1, 5: 2, 127: 1}.get(rank, 0) for rank in range(ranks))
    for _ in range(5):
        clock.advance(1.0)
        for rank in range(ranks):
            if rank != 77:
                beats[rank].beat()
        if clock.now_s() <= 4.0:
            peers.parked()
    with pytest.raises(WorkerLost, match=r"parked peers 77 showed no life for 4 s"):
        peers.parked()


def test_a_store_that_is_not_there() -> None:
    served = host_store("127.0.0.1", 0, timeout_s=10)
    port = served.port
    with pytest.raises(DependencyUnavailable, match=f"127.0.0.1:{port} not bound"):
        host_store("127.0.0.1", port, timeout_s=1)
    flag = StoreWakeFlag(connect_store("127.0.0.1", port, timeout_s=1), "decode-0", unused)
    beats = StoreHeartbeats(connect_store("127.0.0.1", port, timeout_s=1), "decode-0", 0, 1)
    del served
    for ask in (beats.read, beats.beat):
        with pytest.raises(DependencyUnavailable, match="the store of decode-0/beat/0 is gone"):
            ask()
    with pytest.raises(DependencyUnavailable, match="decode-0"):
        flag.is_raised_for(1)
    with pytest.raises(DependencyUnavailable, match=f"127.0.0.1:{port} not reached"):
        connect_store("127.0.0.1", port, timeout_s=1)
    with pytest.raises(ConfigError, match="rendezvous port = 65536"):
        connect_store("127.0.0.1", 65536, timeout_s=1)
