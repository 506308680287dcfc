"""Shares between tenants, priority within one."""

from collections import Counter

from services.scheduler.fair_queue import FairQueue


def fill(queue, tenant, count, cost=10.0, priority=0):
    for i in range(count):
        queue.push(tenant, priority, cost, f"{tenant}{i}")


def test_a_flood_does_not_starve_another_tenant():
    queue = FairQueue({})
    fill(queue, "flood", 100)
    fill(queue, "quiet", 5)
    first = [queue.pop() for _ in range(10)]
    assert Counter(item[0] for item in first) == {"f": 5, "q": 5}


def test_shares_follow_weights_and_costs():
    queue = FairQueue({"heavy": 3.0})
    fill(queue, "heavy", 60)
    fill(queue, "light", 60)
    assert Counter(queue.pop()[0] for _ in range(40)) == {"h": 30, "l": 10}
    queue = FairQueue({})
    fill(queue, "big", 50, cost=40.0)
    fill(queue, "small", 50, cost=10.0)
    assert Counter(queue.pop()[0] for _ in range(25)) == {"s": 20, "b": 5}


def test_priority_within_a_tenant_then_order():
    queue = FairQueue({})
    for item, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        queue.push("t", priority, 1.0, item)
    assert [queue.pop() for _ in range(4)] == ["b", "d", "a", "c"]


def test_priority_never_passes_another_tenants_share():
    queue = FairQueue({})
    fill(queue, "loud", 50, priority=10)
    fill(queue, "calm", 50, priority=-10)
    assert Counter(queue.pop()[0] for _ in range(20)) == {"l": 10, "c": 10}


def test_absence_earns_nothing():
    queue = FairQueue({})
    fill(queue, "busy", 100)
    for _ in range(50):
        queue.pop()
    fill(queue, "late", 50)
    assert Counter(queue.pop()[0] for _ in range(20)) == {"b": 10, "l": 10}


def test_removal_and_bookkeeping():
    queue = FairQueue({})
    items = [object() for _ in range(5)]
    for item in items:
        queue.push("t", 0, 2.0, item)
    assert queue.waiting_cost == 10.0
    assert queue.remove("t", items[2])
    assert not queue.remove("t", items[2])
    assert queue.last_of("t") is items[4]
    assert [queue.pop() for _ in range(4)] == [items[0], items[1], items[3], items[4]]
    assert len(queue) == 0
    assert queue.waiting_cost == 0.0
