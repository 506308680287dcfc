"""The picture of the pools stays true through changes, expired history and an absent server."""

import time

import pytest

from common.clock import MonotonicClock
from services.autoscaler.pool_watch import PoolWatch
from services.autoscaler.workloads import LeaderWorkerSets
from tests.fakes.kubernetes_api import leader_worker_set

LWS = "leaderworkersets"


def until(condition, within_s=10.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def watching(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    picture = PoolWatch(api, LeaderWorkerSets(), "app.kubernetes.io/part-of=tandem", MonotonicClock(), window_s=1)
    picture.start()
    yield picture
    picture.close()


def replicas(picture):
    return {role: pool.replicas for role, pool in picture.pools().items()}


def set_to(kubernetes, count):
    kubernetes.edit(LWS, "tandem-decode", lambda one: one["spec"].update(replicas=count))


def test_changes_come_by_themselves(kubernetes, watching):
    until(lambda: replicas(watching) == {"decode": 2})
    set_to(kubernetes, 3)
    until(lambda: replicas(watching) == {"decode": 3})
    kubernetes.put(LWS, leader_worker_set("prefill", 1))
    until(lambda: replicas(watching) == {"decode": 3, "prefill": 1})
    kubernetes.delete(LWS, "tandem-prefill")
    until(lambda: replicas(watching) == {"decode": 3})
    assert watching.lists == 1


def test_gone_history_is_listed_anew(kubernetes, watching):
    until(lambda: replicas(watching) == {"decode": 2})
    with kubernetes.lock:
        set_to(kubernetes, 5)
        kubernetes.compact()
    until(lambda: replicas(watching) == {"decode": 5})
    assert watching.lists == 2


def test_errors_are_waited_out_and_the_age_tells(kubernetes, watching):
    until(lambda: replicas(watching) == {"decode": 2})
    kubernetes.down = True
    kubernetes.fail(500, 3)
    until(lambda: watching.age_s > 1.5)
    set_to(kubernetes, 4)
    kubernetes.down = False
    until(lambda: replicas(watching) == {"decode": 4})
    assert watching.age_s < 5.0
