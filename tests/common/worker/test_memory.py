import re

import pytest
import torch

from common.config.cluster import ClusterConfig
from common.config.place import PodPlace, parallel_of, rank
from common.errors import ConfigError
from common.worker.memory import asked_by, device_of


def cluster(device: str) -> ClusterConfig:
    parallel = {"ep": 2}
    model = {"path": "m", "name": "m", "device": device}
    return ClusterConfig.model_validate({"model": model, "prefill": {"parallel": parallel}})


def device(name: str, local_rank: int = 1) -> torch.device:
    config = cluster(name)
    return device_of(config, rank(parallel_of(config, "prefill"), PodPlace("prefill", 0, 0), local_rank))


def test_every_rank_has_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device("cuda") == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"model.device = cuda: this rank's is GPU 1, and torch sees 1 here"):
        device("cuda")


def test_cuda_where_there_is_none_is_refused_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"model.device = cuda: torch "):
        device("cuda", 0)


def test_memory_that_is_not_there_is_refused_by_its_setting() -> None:
    asked = 99_999_999 * 737_280
    with (
        pytest.raises(ConfigError) as refused,
        asked_by("prefill.blocks", 99_999_999, asked, torch.device("cpu")),
    ):
        torch.zeros(asked, dtype=torch.uint8)
    found = re.fullmatch(
        r"prefill.blocks = 99999999: asks (\d+) bytes \(68664.6 GiB\), (\d+) bytes \([\d.]+ GiB\) are available on cpu",
        str(refused.value),
    )
    assert found is not None, refused.value
    assert int(found[1]) == asked
    assert 0 < int(found[2]) < asked
