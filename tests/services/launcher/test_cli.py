"""The command line as a user meets it: help that is true, and where a command looks for its cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from services.launcher.run_directory import RUNS, Endpoint, RunDirectory

ROOT = Path(__file__).resolve().parents[3]
NOBODY = ("127.0.0.1:1", "127.0.0.1:2")  # addresses at which nobody listens


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNS, str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def said(result: Result) -> str:
    return f"{result.output} {result.exception}"


def test_load_says_that_its_address_may_be_left_out(runs: Path) -> None:
    result = run("load", "--help")
    assert result.exit_code == 0
    (text,) = re.findall(r"--at .*?--trace", re.sub(r"[│\s]+", " ", result.output))
    assert "unless given, the cluster that runs here" in text
    assert "required" not in text


def test_load_goes_to_the_cluster_that_runs_here_unless_told(runs: Path) -> None:
    assert "no cluster runs under" in said(run("load", "--rate", "1"))
    run_directory = RunDirectory.create(runs / "one")
    run_directory.write_endpoint(Endpoint("one", "m", os.getpid(), NOBODY[:1], (), (), "", ""))
    assert NOBODY[0] in said(run("load", "--rate", "1"))
    for told in (["--at", NOBODY[1]], [f"--at={NOBODY[1]}"]):
        result = run("load", "--rate", "1", *told)
        assert NOBODY[1] in said(result)
        assert NOBODY[0] not in said(result)


def test_load_refuses_what_is_no_address(runs: Path) -> None:
    assert "--at = here: host:port" in said(run("load", "--rate", "1", "--at", "here"))


@pytest.mark.parametrize("command", [["status"], ["why", "r"], ["generate", "x"], ["load", "--rate", "1"]])
def test_a_corrupt_endpoint_ends_a_command_in_one_line(runs: Path, command: list[str]) -> None:
    (runs / "one").mkdir()
    (runs / "one" / "endpoint.json").write_text("{")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tandem: {runs}/one/endpoint.json: not a cluster's endpoint")
