import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common.errors import ConfigError, DependencyUnavailable
from services.launcher.run_directory import Endpoint, RunDirectory, find_endpoint

ENDPOINT = Endpoint("tiny", "tiny", os.getpid(), ("127.0.0.1:1",), (), ("127.0.0.1:2",), "redis://x", "nats://x")


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_the_one_live_cluster_is_found(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "a").write_endpoint(ENDPOINT)
    RunDirectory.create(tmp_path / "b").write_endpoint(replace(ENDPOINT, pid=ended_pid()))
    assert find_endpoint(tmp_path) == ENDPOINT


def test_none_and_several_are_errors_that_say_so(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailable, match=r"no cluster runs under .*TANDEM_RUNS.*--at host:port"):
        find_endpoint(tmp_path / "absent")
    for name in ("a", "b"):
        RunDirectory.create(tmp_path / name).write_endpoint(ENDPOINT)
    with pytest.raises(DependencyUnavailable, match="several clusters"):
        find_endpoint(tmp_path)


def test_a_directory_in_use_is_refused_and_an_old_one_is_cleared(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.write_endpoint(ENDPOINT)
    with pytest.raises(ConfigError, match=f"in use by the cluster of process {os.getpid()}"):
        RunDirectory.create(tmp_path)
    run.release()
    with pytest.raises(ConfigError, match="in use by cluster tiny"):  # a launcher that took no lock
        RunDirectory.create(tmp_path)
    run.write_endpoint(replace(ENDPOINT, pid=ended_pid()))
    (run.logs / "old.log").write_text("x")
    assert not list(RunDirectory.create(tmp_path).logs.iterdir())


def test_of_starts_at_one_moment_one_gets_the_directory(tmp_path: Path) -> None:
    starts = 4
    for attempt in range(20):
        together = threading.Barrier(starts)

        def create(path: Path, together: threading.Barrier = together) -> RunDirectory | ConfigError:
            together.wait()
            try:
                return RunDirectory.create(path)
            except ConfigError as refused:
                return refused

        with ThreadPoolExecutor(starts) as pool:
            came = list(pool.map(create, [tmp_path / str(attempt)] * starts))
        assert sum(isinstance(one, RunDirectory) for one in came) == 1, came
        assert all("in use by the cluster of " in str(one) for one in came if isinstance(one, ConfigError))


def test_a_killed_launcher_leaves_nothing_locked(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom services.launcher.run_directory import RunDirectory\n"
        "run = RunDirectory.create(Path(sys.argv[1]))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    RunDirectory.create(tmp_path).release()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file: cannot be used: Not a directory"):
        RunDirectory.create(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Invalid JSON"),
        (b'{"cluster": "tiny"', "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b'{"cluster": "tiny"}', "pid: .*required.*; schedulers: "),
        (json.dumps(asdict(ENDPOINT) | {"pid": -1}).encode(), "pid: .*greater than 0"),
        (json.dumps(asdict(ENDPOINT) | {"schedulers": []}).encode(), "schedulers: .*at least 1"),
    ],
)
def test_a_corrupt_endpoint_is_refused_by_file_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    run = RunDirectory.create(tmp_path / "a")
    run.release()
    file = run.path / "endpoint.json"
    file.write_bytes(content)
    for look in (lambda: find_endpoint(tmp_path), lambda: RunDirectory.create(run.path)):
        with pytest.raises(ConfigError, match=f"{file}: not a cluster's endpoint .*{reason}"):
            look()
