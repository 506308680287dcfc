"""`tandem up` as whoever started it ends it: in order, nothing left, and a code that says how."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.services.launcher.test_interrupts import Terminal

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        ("waiting for", signal.SIGINT, 130),
        ("waiting for", signal.SIGTERM, 0),
        ("front door", signal.SIGINT, 130),
        ("front door", signal.SIGTERM, 0),
        ("front door", signal.SIGHUP, 0),
    ],
)
def test_the_end_says_how_it_came(tmp_path: Path, moment: str, number: signal.Signals, code: int) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    command = [sys.executable, "-m", "services.cli", "up", "models/demo.yaml", "--run-dir", str(run)]
    command += ["--log-format", "json"]
    with said.open("wb") as out, subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=out) as process:
        try:
            deadline_s = time.monotonic() + 120
            while moment not in said.read_text():
                assert time.monotonic() < deadline_s, said.read_text()
                assert process.poll() is None, said.read_text()
                time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            assert process.wait(60) == code, said.read_text()
        finally:
            process.kill()
    assert said.read_text().splitlines()[-1] == "stopping"
    assert not [child for child in children if child.is_running()]
    assert not (run / "endpoint.json").exists()
    for log in ("scheduler-0", "prefill-0-node-0", "decode-0-node-0"):
        lines = [json.loads(line) for line in (run / "logs" / f"{log}.log").read_text().splitlines()]
        assert moment == "waiting for" or lines[-1]["event"] in ("closed", "drained"), lines[-1]


def test_a_closed_terminal_ends_it_in_order(tmp_path: Path) -> None:
    """While the live table is written to it."""
    run = tmp_path / "run"
    with Terminal("up", "models/demo.yaml", "--run-dir", str(run)) as terminal:
        terminal.wait_for("blocks in use", 120.0)
        children = psutil.Process(terminal.pid).children(recursive=True)
        terminal.hang_up()
        assert terminal.wait(60.0) == 0
    assert not [child for child in children if child.is_running()]
    assert not (run / "endpoint.json").exists()
    assert "closed" in (run / "logs" / "scheduler-0.log").read_text().splitlines()[-1]
    assert "drained" in (run / "logs" / "decode-0-node-0.log").read_text().splitlines()[-1]
