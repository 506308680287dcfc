"""Pools as LeaderWorkerSets and as StatefulSets, read and scaled."""

import pytest

from common.errors import ConfigError
from services.autoscaler.disruption import allowed, floor_of
from services.autoscaler.kubernetes_api import LEADER_WORKER_SETS, ObjectChanged
from services.autoscaler.workloads import LeaderWorkerSets, NotLeading, StatefulSets, workloads
from tests.fakes.kubernetes_api import disruption_budget, leader_worker_set, stateful_set

LWS, STS = "leaderworkersets", "statefulsets"


def always():
    return True


def read(api, kind):
    return kind.pools(api.list(kind.resource)[0])


def test_a_leader_worker_set_is_a_pool(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 3, ready=2, size=16))
    kubernetes.put(LWS, leader_worker_set("something", 3))
    kind = workloads("LeaderWorkerSet")
    pools = read(api, kind)
    assert list(pools) == ["decode"]
    pool = pools["decode"]
    assert (pool.replicas, pool.ready_replicas, pool.nodes) == (3, 2, 16)
    kind.set_groups(api, pool, 4, always)
    assert kubernetes.get(LWS, "tandem-decode")["spec"]["replicas"] == 4


def test_stateful_sets_are_groups(kubernetes, api):
    for group, replicas in ((0, 2), (1, 2), (2, 0), (10, 0)):
        kubernetes.put(STS, stateful_set("prefill", group, replicas, nodes=2))
    kind = workloads("StatefulSet")
    pool = read(api, kind)["prefill"]
    assert (pool.replicas, pool.ready_replicas, pool.nodes) == (2, 2, 2)
    assert pool.names[3] == "tandem-prefill-10"
    kind.set_groups(api, pool, 4, always)
    assert [kubernetes.get(STS, f"tandem-prefill-{i}")["spec"]["replicas"] for i in (0, 1, 2, 10)] == [2, 2, 2, 2]
    kind.set_groups(api, read(api, kind)["prefill"], 1, always)
    assert [kubernetes.get(STS, f"tandem-prefill-{i}")["spec"]["replicas"] for i in (0, 1, 2, 10)] == [2, 0, 0, 0]
    with pytest.raises(ConfigError, match="5 groups, but only 4 StatefulSets"):
        kind.set_groups(api, pool, 5, always)


def test_a_conflicting_write_is_tried_again_on_what_is_there(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    pool = read(api, LeaderWorkerSets())["decode"]
    raced = []

    def race(_path):
        if len(raced) < 2:
            raced.append(True)
            kubernetes.edit(LWS, "tandem-decode", lambda one: one["metadata"]["labels"].update(race=str(len(raced))))

    kubernetes.before_write = race
    LeaderWorkerSets().set_groups(api, pool, 3, always)
    assert kubernetes.count("PUT", "/scale") == 3
    written = kubernetes.get(LWS, "tandem-decode")
    assert (written["spec"]["replicas"], written["metadata"]["labels"]["race"]) == (3, "2")


def test_another_number_than_was_seen_is_left_alone(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    pool = read(api, LeaderWorkerSets())["decode"]
    kubernetes.before_write = lambda _path: kubernetes.edit(
        LWS, "tandem-decode", lambda one: one["spec"].update(replicas=5)
    )
    with pytest.raises(ObjectChanged, match="somebody else asks for 5"):
        LeaderWorkerSets().set_groups(api, pool, 3, always)
    assert kubernetes.get(LWS, "tandem-decode")["spec"]["replicas"] == 5


def test_who_lost_the_lead_writes_nothing(kubernetes, api):
    kubernetes.put(STS, stateful_set("prefill", 0, 1))
    kubernetes.put(STS, stateful_set("prefill", 1, 0))
    kubernetes.put(STS, stateful_set("prefill", 2, 0))
    answers = iter([True, False])
    with pytest.raises(NotLeading):
        StatefulSets().set_groups(api, read(api, StatefulSets())["prefill"], 3, lambda: next(answers))
    assert kubernetes.count("PUT", "/scale") == 1


@pytest.mark.parametrize(
    ("spec", "floor"),
    [({"minAvailable": 33}, 3), ({"minAvailable": "50%"}, 2), ({"minAvailable": 0}, 0), ({"maxUnavailable": 1}, 0)],
)
def test_budgets_count_whole_groups(kubernetes, api, spec, floor):
    kubernetes.put(LWS, leader_worker_set("decode", 4, size=16))
    pool = LeaderWorkerSets().pools(api.list(LEADER_WORKER_SETS)[0])["decode"]
    assert floor_of(pool, [disruption_budget("decode", **spec)]) == floor
    assert floor_of(pool, [disruption_budget("prefill", **spec)]) == 0


def test_a_spent_budget_forbids(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 4))
    pool = LeaderWorkerSets().pools(api.list(LEADER_WORKER_SETS)[0])["decode"]
    spent = disruption_budget("decode", allowed=0, expected=4)
    assert not allowed(pool, [spent])
    assert allowed(pool, [disruption_budget("decode", allowed=0, expected=0)])
    assert allowed(pool, [disruption_budget("prefill", allowed=0, expected=4)])
    component = "app.kubernetes.io/component"
    for operator, values, found in (
        ("In", ["decode"], True),
        ("NotIn", ["decode"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ):
        spent["spec"]["selector"] = {"matchExpressions": [{"key": component, "operator": operator, "values": values}]}
        assert allowed(pool, [spent]) is not found
    spent["spec"]["selector"] = {}
    assert allowed(pool, [spent])
