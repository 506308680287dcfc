"""Ranks that wait sleep: an idle instance leaves the machine to others."""

import time

import pytest

from tests.cluster.conftest import Clusters

WATCHED_S = 5.0
MOST_OF_A_CORE = 0.02  # a rank that hears from its leader 50 times a second takes twice as much


@pytest.mark.parametrize("configuration", ["decode-tp2"])
def test_a_follower_of_an_idle_leader_sleeps(configuration: str, clusters: Clusters) -> None:
    running = clusters.get(configuration)
    running.wait_idle()
    _, follower = running.ranks("decode-0-node-0")
    before_s = sum(follower.cpu_times()[:2])
    time.sleep(WATCHED_S)
    assert sum(follower.cpu_times()[:2]) - before_s < MOST_OF_A_CORE * WATCHED_S
