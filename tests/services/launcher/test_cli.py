"""The command line as a user meets it: help that is true, and where a command looks for its cluster."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from services.launcher.run_directory import RUNS, Endpoint, RunDirectory

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
