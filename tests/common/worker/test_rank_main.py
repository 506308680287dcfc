import pytest

from common.config.cluster import WorkerConfig
from common.worker.rank_main import rest_s


@pytest.mark.parametrize(
    ("worker", "expected_s"),
    [
        (WorkerConfig(), 1.0),
        (WorkerConfig(group_silence_s=2.0), 0.25),
        (WorkerConfig(stalled_after_s=0.5), 0.125),  # else an instance without work would count as stalled
    ],
)
def test_an_engine_at_rest_is_neither_silent_nor_stalled(worker: WorkerConfig, expected_s: float) -> None:
    assert rest_s(worker) == expected_s
