"""Two whole renders, kept beside this file and read by people when they change.

`TANDEM_GOLDEN=write pytest tests/helm/test_golden.py` writes them anew; the diff is what a reviewer reads.
"""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.helm.chart import Chart
from tests.helm.objects import Object

GOLDEN = Path(__file__).parent / "golden"
# Dashboards are compared with their files elsewhere, network policies and accounts do not depend on the preset.
LEFT_OUT = {"NetworkPolicy", "ServiceAccount"}


class _Lines(yaml.SafeDumper):
    """Text of several lines as several lines."""


def _text(dumper: _Lines, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Lines.add_representer(str, _text)


def normal(objects: list[Object]) -> str:
    """Without what is random, what is the same everywhere, and digests that follow from the rest."""
    kept = []
    for object_ in objects:
        if object_["kind"] in LEFT_OUT or "-dashboard-" in object_["metadata"]["name"]:
            continue
        if object_["kind"] == "Secret":
            object_["data"] = dict.fromkeys(object_["data"], "(random)")
        kept.append(object_)
    kept.sort(key=lambda o: (o["kind"], o["metadata"]["name"]))
    text = yaml.dump_all(kept, Dumper=_Lines, sort_keys=True, width=110)
    return re.sub(r"(tandem/config: )\S+", r"\1(digest)", text)


@pytest.mark.parametrize("preset", ["local", "h100-ep128"])
def test_the_render_is_the_one_that_was_read(helm4: Chart, preset: str) -> None:
    file = GOLDEN / f"{preset}.yaml"
    now = normal(helm4.objects(preset))
    if os.environ.get("TANDEM_GOLDEN") == "write":
        file.write_text(now)
    assert now == file.read_text(), f"read the change, then write {file.name} anew (see this file's first lines)"
