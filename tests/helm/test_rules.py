"""Rules and dashboards: promtool takes them, alerts fire when they should, and every alert has a runbook."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helm.chart import ROOT, Chart
from tests.helm.objects import one
from tests.helm.prometheus import DASHBOARDS, RULES, alerts, names_in, promtool, rules

ALIASES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    *(
        f"vllm:{name}_{part}"
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
        for part in ("bucket", "sum", "count")
    ),
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
}  # fmt: skip
needs_promtool = pytest.mark.skipif(promtool() is None, reason="promtool is missing; `make helm-test` fetches it")


@pytest.mark.helm
def test_promtool_is_there() -> None:
    """The long form does not pass without it."""
    assert promtool(), "run `make helm-test`, which fetches it, or install Prometheus"


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    subprocess.run([str(promtool()), "check", "rules", *map(str, RULES)], check=True, capture_output=True)


@needs_promtool
def test_alerts_fire_and_aliases_carry_values() -> None:
    file = Path(__file__).parent / "rules" / "tests.yaml"
    done = subprocess.run([str(promtool()), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    tried = yaml.safe_load((Path(__file__).parent / "rules" / "tests.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tried for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts()}


def test_aliases_are_the_known_names() -> None:
    assert {rule["record"] for rule in rules() if "record" in rule} == ALIASES


def test_every_alert_has_a_runbook() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    sections = dict(re.findall(r"^### (Tandem\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    for alert in alerts():
        name = alert["alert"]
        assert alert["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert len(sections[name].split()) >= 25, f"{name}: what to look at and what to change"
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert set(sections) == {alert["alert"] for alert in alerts()}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_whole(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken = set()
    for panel in panels:
        assert panel["targets"], panel["title"]
        assert all('namespace=~"$namespace"' in target["expr"] for target in panel["targets"]), panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_names_are_read_out_of_expressions() -> None:
    asked = 'histogram_quantile(0.95, sum by (le, model) (rate(tandem_a_bucket{x="tandem_b"}[5m]))) > 0.1 and tandem_c'
    assert names_in(asked) == {"tandem_a_bucket", "tandem_c"}
    with pytest.raises(AssertionError):
        names_in("rate(some_other_total[5m])")


def test_the_chart_installs_them_for_its_namespace(helm4: Chart) -> None:
    objects = helm4.objects("h100-ep16", ["monitoring.rules.enabled=true"])
    for path in RULES:
        installed = one(objects, "PrometheusRule", f"-{path.stem}")["spec"]["groups"]
        groups = [group for group in yaml.safe_load(path.read_text())["groups"] if "autoscaler" not in group["name"]]
        for group in groups:
            for rule in group["rules"]:
                rule["expr"] = re.sub(r"(tandem_[a-z_]+)(?![a-z_{])", r"\1{}", rule["expr"])
                rule["expr"] = rule["expr"].replace("{", '{namespace="serving", ').replace(", }", "}")
        assert installed == groups
    for path in DASHBOARDS:
        config = one(objects, "ConfigMap", f"-dashboard-{path.stem}")
        assert json.loads(config["data"][path.name]) == json.loads(path.read_text())
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def installed_rules(helm4: Chart, settings: list[str], file: Path) -> set[str]:
    """Write the rules that a release brings, and give the names of its alerts."""
    objects = helm4.objects("h100-ep16", ["monitoring.rules.enabled=true", *settings])
    groups = [group for o in objects if o["kind"] == "PrometheusRule" for group in o["spec"]["groups"]]
    file.write_text(yaml.safe_dump({"groups": groups}))
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


@needs_promtool
def test_a_release_looks_at_its_own_namespace(helm4: Chart, tmp_path: Path) -> None:
    """Another release's scheduler is no reason to keep quiet about ours."""
    installed_rules(helm4, ["autoscaler.enabled=true"], tmp_path / "rules.yaml")
    alert = next(alert for alert in alerts() if alert["alert"] == "TandemNoScheduler")
    labels = {"namespace": "serving", "severity": "critical"}
    cases = [
        (f'tandem_live_requests{{namespace="{namespace}"}}', exp)
        for namespace, exp in (
            ("other", [{"exp_labels": labels, "exp_annotations": alert["annotations"]}]),
            ("serving", []),
        )
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": "1x20"}],
            "alert_rule_test": [{"eval_time": "10m", "alertname": "TandemNoScheduler", "exp_alerts": expected}],
        }
        for series, expected in cases
    ]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    command = [str(promtool()), "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_alerts_for_the_parts_that_it_has(helm4: Chart, tmp_path: Path) -> None:
    every = {alert["alert"] for alert in alerts()}
    scaling = {"TandemNoAutoscaler", "TandemAutoscalerBlind"}
    for settings, missing in (
        (["autoscaler.enabled=true"], set()),
        ([], scaling),
        (["decode.enabled=false"], scaling | {"TandemNoDecode"}),
        (["prefill.enabled=false"], scaling | {"TandemNoPrefill"}),
    ):
        assert every - installed_rules(helm4, settings, tmp_path / "rules.yaml") == missing
