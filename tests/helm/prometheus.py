"""Metric names in PromQL, as far as the chart's rules and dashboards use it; and promtool, where it is."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.helm.chart import CHART, ROOT

RULES = tuple(sorted((CHART / "files/rules").glob("*.yaml")))
DASHBOARDS = tuple(sorted((CHART / "files/dashboards").glob("*.json")))
_WORDS = {
    "absent", "and", "avg", "by", "clamp_min", "histogram_quantile", "increase", "label_replace", "label_values", "le",
    "max", "min", "or", "rate", "sum", "without",
}  # fmt: skip


def names_in(expression: str) -> set[str]:
    """Every metric that an expression reads.

    Raises:
        AssertionError: a word is neither a metric of ours nor one of PromQL's that are known here.
    """
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    bare = re.sub(r"\b(by|without)\s*\([^)]*\)", r"\1 ", bare)
    bare = re.sub(r"label_values\(([\w:]+),\s*\w+\)", r"\1", bare)
    words = set(re.findall(r"[A-Za-z_:][\w:]*", bare)) - _WORDS
    assert all(word.startswith(("tandem_", "vllm:")) for word in words), (expression, words)
    return words


def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def dashboard_expressions(path: Path) -> list[str]:
    board = json.loads(path.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return asked + [entry["query"] for entry in board["templating"]["list"] if entry["type"] == "query"]


def shown_metrics() -> dict[str, str]:
    """Each metric of a dashboard or rule, with one place that reads it."""
    found = {name: path.name for path in DASHBOARDS for e in dashboard_expressions(path) for name in names_in(e)}
    for rule in rules():
        found |= {name: str(rule.get("alert") or rule["record"]) for name in names_in(rule["expr"])}
    return found


def promtool() -> str | None:
    """On PATH, or where fetch_tools.py puts it."""
    return shutil.which("promtool", path=f"{os.environ.get('PATH', os.defpath)}:{ROOT / '.helm-tools'}")
