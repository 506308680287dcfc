from pathlib import Path

import pytest

from common.config.cluster import ParallelConfig
from common.config.place import PodPlace, ranks
from common.worker.arguments import parse_arguments, rank_command


def test_a_rank_is_started_with_all_that_its_pod_was_told() -> None:
    told = parse_arguments(
        "decode",
        [
            "--config", "c.yaml", "--group", "1", "--node", "2", "--rendezvous", "h:5", "--first-metrics-port", "90",
            "--clear-shared-memory", "/dev/shm",
        ],
    )  # fmt: skip
    assert (told.pod, told.rendezvous, told.first_port) == (PodPlace("decode", 1, 2), "h:5", None)
    place = ranks(ParallelConfig(groups=2, ep=12, tp=2, instances_per_pod=2), told.pod)[3]
    command = rank_command(told, place, "services.decode.rank", 3)
    assert command.name == "decode-1-5-tp-1"
    assert command.environment == {"OMP_NUM_THREADS": "3"}
    again = parse_arguments("decode", command.command[3:])
    assert again.pod == told.pod
    assert (again.config, again.local_rank, again.tethered) == (Path("c.yaml"), 3, True)
    assert (told.clear_shared_memory, again.clear_shared_memory) == (Path("/dev/shm"), None)  # the pod does it once
    assert (again.first_port, again.first_metrics_port) == (None, 90)


def test_a_config_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments("prefill", [])
    assert "--config" in capsys.readouterr().err
