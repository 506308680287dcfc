"""What cannot work is refused before anything is installed, with the values named."""

import re
from functools import cache

import pytest

from tests.helm.chart import CHART, Chart, Refused

IMPOSSIBLE: list[tuple[str | None, list[str], str]] = [
    (None, ["decode.dp=4"], r"decode\.ep = 8: must be dp \* tp = 4 \* 1 = 4"),
    (None, ["prefill.tp=2"], r"prefill\.ep = 8: must be dp \* tp = 2 \* 2 = 4"),
    ("h100-ep16", ["decode.nodes=3"], r"decode\.ep = 16: must be nodes \* gpusPerNode = 3 \* 8 = 24"),
    (None, ["prefill.gpusPerNode=4"], r"prefill\.ep = 8: must be nodes \* gpusPerNode = 1 \* 4 = 4"),
    ("gb200-nvl72", ["prefill.tp=8", "prefill.dp=1"], r"prefill\.tp = 8: must divide gpusPerNode = 4"),
    (
        "gb200-nvl72",
        ["decode.ep=72", "decode.dp=72", "decode.nodes=18"],
        r"decode\.ep = 72: must divide model\.facts\.routedExperts = 256",
    ),
    (
        "local",
        ["prefill.ep=8", "prefill.dp=1", "prefill.tp=8", "prefill.gpusPerNode=8"],
        r"prefill\.tp = 8: must divide model\.facts\.attentionHeads = 4",
    ),
    (
        "h200-single-node",
        ["decode.gpu.memoryGiB=79"],
        r"decode\.gpu\.memoryGiB = 79: ep = 8 needs [\d.]+ GiB a GPU: 77\.4 of experts",
    ),
    (
        "h100-ep16",
        ["prefill.ep=8", "prefill.dp=2", "prefill.nodes=1"],
        r"prefill\.gpu\.memoryGiB = 79: ep = 8 needs",
    ),
    ("h100-ep128", ["decode.settings.blocks=20000"], r"decode\.gpu\.memoryGiB = 79: .* 85\.\d of latent"),
    (None, ["decode.settings.blocks=100"], r"decode\.settings\.blocks = 100: one sequence of .* needs 512 blocks"),
    (None, ["prefill.layout.blockTokens=128"], r"prefill\.layout\.blockTokens = 128: .* layout\.blockTokens = 64"),
    (None, ["decode.layout.draftTokens=0"], r"decode\.layout\.draftTokens = 0: .* layout\.draftTokens = 1"),
    (None, ["decode.layout.dtype=float32"], r"decode\.layout\.dtype = float32: .* layout\.dtype = bfloat16"),
    (None, ["model.facts.mtpLayers=0"], r"layout\.draftTokens = 1: model\.facts\.mtpLayers = 0"),
    ("local", ["contextTokens=8192"], r"contextTokens = 8192: the model knows model\.facts\.contextTokens = 4096"),
    (None, ["redis.mode=external"], r"redis\.external\.urlSecret\.name is empty"),
    (None, ["nats.mode=external"], r"nats\.external\.urlSecret\.name is empty"),
    (None, ["model.download.enabled=true"], r"model\.download\.url is empty"),
    (None, ["model.store.kind=scratch"], r"model\.store\.kind = scratch: starts empty"),
    ("local", ["model.download.enabled=true", "model.download.url=http://x/y"], r"model\.store\.kind = image"),
    (None, ["jitCache.kind=pvc"], r"jitCache\.claimName is empty"),
    (None, ["rdma.enabled=true"], r"securityProfile = restricted: rdma\.enabled = true"),
    ("local", ["rdma.enabled=true"], r"rdma\.enabled = true: model\.device = cpu"),
    (None, ["rdma.enabled=true", "securityProfile=rdma"], r"rdma\.resources is empty"),
    (None, ["prefill.enabled=false", "decode.enabled=false"], r"nothing would serve"),
    (None, ["autoscaler.enabled=true", "decode.groups=9"], r"decode\.groups = 9: must lie .*\.maxGroups = 4"),
    ("local", ["decode.exclusiveTopology=rack"], r"decode\.exclusiveTopology = rack: only groupController"),
    (None, ["scheduler.autoscaling.minReplicas=20"], r"minReplicas = 20: at most maxReplicas = 8"),
]  # fmt: skip
MISTYPED = [
    ("decode.gpuPerNode=8", "gpuPerNode"),
    ("decode.settings.block=1", "block"),
    ("prefill.worker.schedule=dual", "schedule"),
    ("schedulers.replicas=2", "schedulers"),
    ("images.gpu.tag=latest", "tag"),
    ("images.gpu.digest=sha256:12", "digest"),
    ("securityProfile=root", "securityProfile"),
    ("decode.ep=0", "ep"),
    ("decode.ep=eight", "ep"),
    ("redis.password=secret", "password"),
    ("rdma.env.PATH=x", "PATH"),
    ("cluster=Upper", "cluster"),
    ("decode.lifecycle.drainSecond=1", "drainSecond"),
    ("networkPolicy.client[0].podSelector.a=b", "client"),
]


@cache
def refusal(chart: Chart, preset: str | None, settings: tuple[str, ...]) -> str:
    with pytest.raises(Refused) as refused:
        chart.render(preset, settings)
    return str(refused.value)


@pytest.mark.parametrize(("preset", "settings", "message"), IMPOSSIBLE)
def test_the_impossible_is_refused_by_name(helm4: Chart, preset: str | None, settings: list[str], message: str) -> None:
    said = refusal(helm4, preset, tuple(settings))
    assert re.search(message, said), said


@pytest.mark.parametrize(("setting", "field"), MISTYPED)
def test_typos_are_refused_by_the_schema(helm4: Chart, setting: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        helm4.render(None, [setting])
    assert field in str(refused.value)
    assert "schema" in str(refused.value)


def test_the_older_helm_refuses_alike(helm_binaries: dict[str, object]) -> None:
    helm3 = Chart(helm_binaries["helm3"])  # type: ignore[arg-type]
    for settings, message in ((["decode.dp=4"], "must be dp * tp"), (["decode.gpuPerNode=8"], "gpuPerNode")):
        with pytest.raises(Refused) as refused:
            helm3.render(None, settings)
        assert message in str(refused.value)


def test_every_refusal_of_the_chart_is_tried(helm4: Chart) -> None:
    """Each message in the templates is one that some case above has met."""
    text = "".join(path.read_text() for path in (CHART / "templates").glob("*.tpl"))
    messages = re.findall(r'fail \(?(?:printf )?"([^"]+)"', text)
    said = " ".join(refusal(helm4, preset, tuple(settings)) for preset, settings, _ in IMPOSSIBLE)
    untried = [m for m in messages if not re.search(".*?".join(map(re.escape, re.split(r"%\.?\d*[sdvf]", m))), said)]
    # The schema refuses `latest` first; the template's own check is for an appVersion of that name.
    assert untried == ["images.%s.tag = latest: name a version, or pods of one group run different code"]
