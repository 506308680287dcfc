"""The real client against a server that speaks the real HTTP API."""

import pytest

from common.errors import ConfigError, DependencyUnavailable
from services.autoscaler.kubernetes_api import (
    LEADER_WORKER_SETS,
    LEASES,
    HistoryGone,
    KubernetesApi,
    ObjectChanged,
    ObjectMissing,
)
from tests.fakes.kubernetes_api import leader_worker_set

LWS = "leaderworkersets"
NAME = "tandem-decode"


def test_objects_by_label_and_name(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    kubernetes.put(LWS, leader_worker_set("other", 2))
    found, version = api.list(LEADER_WORKER_SETS, "app.kubernetes.io/component=decode")
    assert [one["metadata"]["name"] for one in found] == [NAME]
    assert version == str(kubernetes.version)
    assert api.get(LEADER_WORKER_SETS, NAME)["spec"]["replicas"] == 2


def test_scale_is_written_over_what_was_read_only(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    scale = api.get_scale(LEADER_WORKER_SETS, NAME)
    kubernetes.edit(LWS, NAME, lambda one: one["metadata"]["labels"].update(x="y"))
    scale["spec"]["replicas"] = 3
    with pytest.raises(ObjectChanged, match="409 Conflict"):
        api.replace_scale(LEADER_WORKER_SETS, NAME, scale)
    fresh = api.get_scale(LEADER_WORKER_SETS, NAME)
    fresh["spec"]["replicas"] = 3
    api.replace_scale(LEADER_WORKER_SETS, NAME, fresh)
    assert kubernetes.get(LWS, NAME)["spec"]["replicas"] == 3
    assert kubernetes.get(LWS, NAME)["metadata"]["labels"]["x"] == "y"


def test_watch_tells_changes_after_a_version(kubernetes, api):
    kubernetes.put(LWS, leader_worker_set("decode", 2))
    _, version = api.list(LEADER_WORKER_SETS)
    kubernetes.edit(LWS, NAME, lambda one: one["spec"].update(replicas=3))
    kubernetes.delete(LWS, NAME)
    events = api.watch(LEADER_WORKER_SETS, "", version, 5)
    assert [(kind, one["spec"]["replicas"]) for kind, one in (next(events), next(events))] == [
        ("MODIFIED", 3),
        ("DELETED", 3),
    ]
    events.close()


def test_a_watch_ends_with_its_window_and_when_its_history_is_gone(kubernetes, api):
    _, version = api.list(LEADER_WORKER_SETS)
    assert list(api.watch(LEADER_WORKER_SETS, "", version, 1)) == []
    kubernetes.compact()
    with pytest.raises(HistoryGone):
        list(api.watch(LEADER_WORKER_SETS, "", version, 5))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, ConfigError),
        (404, ObjectMissing),
        (409, ObjectChanged),
        (410, HistoryGone),
        (429, DependencyUnavailable),
        (500, DependencyUnavailable),
        (503, DependencyUnavailable),
    ],
)
def test_refusals_have_a_type(kubernetes, api, status, error):
    kubernetes.fail(status)
    with pytest.raises(error, match=f"get leases/x: {status}"):
        api.get(LEASES, "x")


def test_no_answer_is_an_unavailable_dependency(kubernetes):
    configuration = kubernetes.configuration()
    kubernetes.down = True
    api = KubernetesApi(configuration, "default", timeout_s=0.5)
    with pytest.raises(DependencyUnavailable, match="no answer"):
        api.get(LEASES, "x")
    api.close()
