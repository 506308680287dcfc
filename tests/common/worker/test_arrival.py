"""Ranks wait for one another at the start, however long the slowest takes to get there."""

import threading

import pytest

from common.clock import ManualClock, MonotonicClock
from common.errors import DependencyUnavailable
from common.parallel.rendezvous import connect_store, host_store
from common.worker.group import GroupArrival


def test_nobody_passes_before_the_last_has_come() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    clock = MonotonicClock()
    first = GroupArrival(store, 0, 2, clock)
    second = GroupArrival(connect_store("127.0.0.1", store.port, timeout_s=10), 1, 2, clock)
    passed = threading.Event()

    def arrive() -> None:
        first.wait("met", 30.0)
        passed.set()

    thread = threading.Thread(target=arrive)
    thread.start()
    assert not passed.wait(0.2)
    second.wait("met", 30.0)
    assert passed.wait(10.0)
    thread.join()


def test_who_is_missing_is_named() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=10)
    with pytest.raises(DependencyUnavailable, match=r"ranks \[1, 2\] of the group have not loaded within 0 s"):
        GroupArrival(store, 0, 3, ManualClock()).wait("loaded", 0.0)
