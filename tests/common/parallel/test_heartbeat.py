import pytest

from common.errors import ConfigError, DependencyUnavailable
from common.parallel.heartbeat import PeerWatch, StoreHeartbeats
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


def test_a_store_that_is_not_there() -> None:
    served = host_store("127.0.0.1", 0, timeout_s=10)
    port = served.port
    with pytest.raises(DependencyUnavailable, match=f"127.0.0.1:{port} not bound"):
        host_store("127.0.0.1", port, timeout_s=1)
    flag = StoreWakeFlag(connect_store("127.0.0.1", port, timeout_s=1), "decode-0", unused)
    del served
    with pytest.raises(DependencyUnavailable, match="decode-0"):
        flag.is_raised_for(1)
    with pytest.raises(DependencyUnavailable, match=f"127.0.0.1:{port} not reached"):
        connect_store("127.0.0.1", port, timeout_s=1)
    with pytest.raises(ConfigError, match="rendezvous port = 65536"):
        connect_store("127.0.0.1", 65536, timeout_s=1)
