import pytest

from common.config.cluster import ClusterConfig, ParallelConfig
from common.config.place import PodPlace, pods, rank, ranks
from common.errors import ConfigError


def test_ep128_over_sixteen_nodes_numbers_every_rank_once() -> None:
    parallel = ParallelConfig(groups=2, ep=128, tp=4, instances_per_pod=2)
    config = ClusterConfig.model_validate({"model": {"path": "m", "name": "m"}, "decode": {"parallel": parallel}})
    every = pods(config, "decode")
    assert len(every) == 32
    for group in range(2):
        places = [place for pod in every if pod.group == group for place in ranks(parallel, pod)]
        assert sorted(place.rank for place in places) == list(range(128))
        assert len({place.instance for place in places}) == 32
        assert sum(place.leads for place in places) == 32
        assert {place.local_rank for place in places} == set(range(8))
    last = rank(parallel, PodPlace("decode", 1, 15), 7)
    assert (last.instance, last.rank, last.tp_ranks) == ("decode-1-31", 127, [124, 125, 126, 127])
    assert not last.leads


def test_a_group_is_one_pod_unless_told() -> None:
    assert ParallelConfig(ep=4).pods_per_group == 1
    assert [place.instance for place in ranks(ParallelConfig(ep=2), PodPlace("prefill", 0, 0))] == [
        "prefill-0-0",
        "prefill-0-1",
    ]


@pytest.mark.parametrize(
    ("pod", "local_rank", "named"),
    [
        (PodPlace("decode", 1, 0), 0, "group = 1"),
        (PodPlace("decode", 0, 1), 0, "node = 1"),
        (PodPlace("decode", 0, 0), 2, "local_rank = 2"),
    ],
)
def test_a_place_outside_the_pool_is_refused(pod: PodPlace, local_rank: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        rank(ParallelConfig(ep=2), pod, local_rank)
