"""`tandem up` as whoever started it ends it: in order, nothing left, and a code that says how."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        ("waiting for", signal.SIGINT, 130),
        ("waiting for", signal.SIGTERM, 0),
        ("front door", signal.SIGINT, 130),
        ("front door", signal.SIGTERM, 0),
    ],
)
def test_the_end_says_how_it_came(tmp_path: Path, moment: str, number: signal.Signals, code: int) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    command = [sys.executable, "-m", "services.cli", "up", "models/demo.yaml", "--run-dir", str(run)]
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
