"""A parked group is heard without asking, through the store at which it met."""

import gc
import queue
import time

import pytest

from common.parallel.lock_step import SchedulePolicy
from common.parallel.rendezvous import HostedStore, connect_store, host_store
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from common.parallel.wake_flag import StoreWakeFlag
from common.parallel.wake_watch import WakeWatch

WAIT_S = 10.0


def flag_of(store: HostedStore) -> StoreWakeFlag:
    def connect():  # type: ignore[no-untyped-def]
        return connect_store("127.0.0.1", port, timeout_s=WAIT_S)

    port = store.port
    return StoreWakeFlag(connect(), "ep", connect)


def test_all_hear_the_one_that_calls_and_look_beside_it() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=WAIT_S)
    calls: queue.SimpleQueue[int] = queue.SimpleQueue()
    gates = [LockStepGate(SchedulePolicy(2), flag_of(store)) for _ in range(4)]
    for step in range(2):  # the flag of one park says nothing in the next
        for number, gate in enumerate(gates):
            for _ in range(3):  # told once, however often it is asked for
                gate.watch(lambda number=number: calls.put(number))  # type: ignore[misc]
        assert not any(gate.called() for gate in gates)  # the wait keeps no look waiting
        with pytest.raises(queue.Empty):
            calls.get(timeout=0.1)
        gates[step].wake()
        assert sorted(calls.get(timeout=WAIT_S) for _ in gates) == [0, 1, 2, 3]
        assert all(gate.enter() is Schedule.NONE for gate in gates)
        for gate in gates:
            gate.watch(lambda: calls.put(-1))  # it runs: nobody calls it
            gate.leave((0, 0, 0, 0))
    assert calls.empty()


def test_a_group_that_has_ended_lets_those_go_that_wait() -> None:
    store = host_store("127.0.0.1", 0, timeout_s=WAIT_S)
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    waiting, host = LockStepGate(SchedulePolicy(2), flag_of(store)), LockStepGate(SchedulePolicy(2), flag_of(store))
    waiting.watch(lambda: calls.put("called"))
    host.dismiss()
    assert calls.get(timeout=WAIT_S) == "called"


def test_a_store_that_is_gone_is_a_call_too() -> None:
    """Who is called looks, and then finds out."""
    store = host_store("127.0.0.1", 0, timeout_s=WAIT_S)
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    flag = flag_of(store)
    WakeWatch(flag).watch(0, lambda: calls.put("called"))
    time.sleep(0.1)
    assert calls.empty()
    del store
    gc.collect()
    assert calls.get(timeout=WAIT_S) == "called"
