"""Releases beside one another, under odd names, and from one revision to the next."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.helm.chart import ROOT, Chart, Refused
from tests.helm.objects import KUBERNETES, Object, component, faults_of, pods

CHANGES = {
    "decode.groups=2": set(),
    "prefill.autoscale.maxGroups=3": {"autoscaler"},
    "autoscaler.settings.ttft_s=1": {"autoscaler"},
    "scheduler.settings.max_wait_s=5": {"scheduler", "autoscaler"},
    "prefill.settings.max_running=8": {"prefill", "autoscaler"},
    "prefill.settings.chunk_tokens=2048": {"prefill", "scheduler", "autoscaler"},
    "decode.lifecycle.drainSeconds=60": {"decode", "autoscaler"},
    "redis.timeoutSeconds=2": {"prefill", "decode", "scheduler", "autoscaler"},
}


def templates(objects: list[Object]) -> dict[str, Object]:
    return {component(template): template for _, template in pods(objects)}


@pytest.mark.parametrize("setting", CHANGES)
def test_a_change_replaces_only_the_pods_that_read_it(helm4: Chart, setting: str) -> None:
    """A group that starts anew loads its weights for the better part of an hour."""
    before, after = (
        templates(helm4.objects("h100-ep16", ["autoscaler.enabled=true", *more])) for more in ([], [setting])
    )
    assert {name for name, template in before.items() if after[name] != template} == CHANGES[setting]


def test_roles_read_what_their_digest_covers() -> None:
    def reads(*folders: str) -> set[str]:
        text = "".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).glob("*.py")))
        return set(re.findall(r"config\.((?:prefill|decode|scheduler|autoscaler)(?:\.\w+)?)", text))

    other = {part for part in reads("services/scheduler") if not part.startswith("scheduler")}
    assert other == {"prefill.chunk_tokens"}
    for mine, theirs in (("prefill", "decode"), ("decode", "prefill")):
        assert not [part for part in reads(f"services/{mine}") if part.startswith((theirs, "scheduler", "autoscaler"))]
    assert not [part for part in reads("common/worker") if part.startswith(("scheduler", "autoscaler"))]


def test_a_new_version_of_the_chart_alone_replaces_no_pod(helm4: Chart) -> None:
    for _, template in pods(helm4.objects("h100-ep16", ["autoscaler.enabled=true"])):
        labels = template["metadata"]["labels"]
        if component(template) == "test":  # not replaced but run when it is asked for
            continue
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels), component(template)


def names(objects: list[Object]) -> set[tuple[str, str]]:
    return {(o["kind"], o["metadata"]["name"]) for o in objects}


LONG = "a-release-whose-name-is-as-long-as-helm-takes-them-at"


@pytest.mark.parametrize(("release", "namespace"), [(f"{LONG}-1", "n" * 63), ("x", "1"), ("true", "0x1f")])
@pytest.mark.parametrize(
    "settings", [["autoscaler.enabled=true"], ["groupController=StatefulSet", "prefill.groups=100", "decode.groups=0"]]
)
def test_odd_names_of_releases(helm4: Chart, release: str, namespace: str, settings: list[str]) -> None:
    release = release[-53:]
    objects = replace(helm4, release=release, namespace=namespace).objects("h100-ep16", settings)
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
    for o in objects:
        # Controllers label pods with the name, an ordinal of a LeaderWorkerSet's groups, and a hash of ten.
        room = {"StatefulSet": 11, "Deployment": 11, "LeaderWorkerSet": 14}.get(o["kind"], 0)
        assert len(o["metadata"]["name"]) + room <= 63, o["metadata"]["name"]
    assert all(isinstance(text, str) for text in leaves_of_labels(objects))


def leaves_of_labels(found: Any) -> list[Any]:
    """Every value of labels, selectors and arguments anywhere."""
    if isinstance(found, list):
        return [leaf for one in found for leaf in leaves_of_labels(one)]
    if not isinstance(found, dict):
        return []
    leaves = []
    for key, below in found.items():
        if key in ("labels", "matchLabels", "annotations"):
            leaves += list((below or {}).values())
        elif key in ("args", "command"):
            leaves += list(below)
        else:
            leaves += leaves_of_labels(below)
    return leaves


def test_releases_beside_one_another_share_no_name(helm4: Chart) -> None:
    """Long names differ where they are cut."""
    first, second, third = (
        names(replace(helm4, release=name).objects("h100-ep16")) for name in (f"{LONG}", f"{LONG[:-1]}2", "tandem")
    )
    assert not first & second
    assert not first & third


@pytest.mark.parametrize("release", ["1st", "a.b"])
def test_names_that_services_cannot_have_are_refused(helm4: Chart, release: str) -> None:
    chart = replace(helm4, release=release)
    with pytest.raises(Refused, match=rf"name {release}-tandem: .* set fullnameOverride"):
        chart.render("local")
    objects = chart.objects("local", ["fullnameOverride=llm"])
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
