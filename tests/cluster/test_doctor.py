"""The doctor beside a running cluster: it finds nothing, and sees a file that does not fit what runs."""

import json

import pytest
import yaml

from services.launcher.doctor.run import run_doctor


@pytest.mark.parametrize("role", ["prefill", "decode", "scheduler"])
def test_a_running_cluster_is_healthy(pairs, capsys, role):
    assert run_doctor(pairs.cluster.run.config, role, [], as_json=True) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["id"] for one in found if one["severity"] == "error"] == []


def test_a_file_that_does_not_fit_what_runs_is_refused(pairs, capsys, tmp_path):
    document = yaml.safe_load(pairs.cluster.run.config.read_text())
    document["block_tokens"] = 32
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(document))
    assert run_doctor(file, "scheduler", [], as_json=True) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["id"], one["setting"]) for one in found if one["severity"] == "error"] == [
        ("pair-block-tokens", "layout.blockTokens")
    ]
