"""What cannot work is refused before anything is installed, with the values named."""

import re
from dataclasses import replace
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
    (None, ["scheduler.resources.requests.cpu=null"], r"scheduler\.resources\.requests\.cpu is not set"),
    (None, ["decode.ports.metrics=7107"], r"decode\.ports\.metrics = 7107: .* reach 7107, .* decode\.ports\.grpc"),
    (None, ["decode.ports.rendezvous=9203"], r"decode\.ports\.rendezvous = 9203: .* one of decode\.ports\.metrics"),
    (None, ["prefill.ports.health=7101"], r"prefill\.ports\.health = 7101: .* one of prefill\.ports\.grpc"),
    (None, ["decode.ports.grpc=65529"], r"decode\.ports\.grpc = 65529: 8 ports from there end after 65535"),
    (None, ["scheduler.ports.http=7000"], r"scheduler\.ports\.http = 7000: .* one of scheduler\.ports\.grpc"),
    (None, ["decode.settings.landing_blocks=100"], r"draining_blocks_limit = 192: at most landing_blocks = 100"),
    (None, ["decode.settings.draining_blocks_limit=null", "decode.settings.landing_blocks=40"], r"limit = 48: at most"),
    (
        None,
        ["autoscaler.enabled=true", "autoscaler.settings.lease_duration_s=10"],
        r"lease_duration_s = 10: must be over lease_renew_s \+ api_timeout_s = 10",
    ),
    (
        None,
        ["autoscaler.enabled=true", "autoscaler.settings.interval_s=16"],
        r"hold_s = 30: at least twice interval_s = 16",
    ),
    (None, ["redis.startTimeoutSeconds=600"], r"doctor\.timeoutSeconds = 600: at least 60 more .*, 660"),
    (None, ["prefill.shm=1Ti"], r"prefill\.shm = 1Ti: counts against resources\.limits\.memory = 1024Gi"),
    (None, ["decode.resources.requests.memory=2Ti"], r"decode\.resources\.requests\.memory = 2Ti: .* limit 1024Gi"),
    (None, ["scheduler.resources.limits.cpu=1500m"], r"scheduler\.resources\.requests\.cpu = 2: .* limit 1500m"),
    (None, ["model.store.accessMode=ReadWriteOnce"], r"accessMode = ReadWriteOnce: .* several nodes"),
    (None, ["model.store.accessMode=ReadOnlyMany"], r"accessMode = ReadOnlyMany: .* starts empty"),
    (None, ["model.store.directory=/v3"], r"directory = /v3: model\.store\.kind = pvc takes one that is relative"),
    ("local", ["model.store.directory=v3"], r"directory = v3: model\.store\.kind = image takes one that is absolute"),
    (None, ["model.store.directory=../etc"], r"directory = \.\./etc: must lie below the store"),
    (None, ["decode.rollout.maxUnavailable=0"], r"decode\.rollout: maxUnavailable = 0 and maxSurge = 0"),
    (
        "h100-ep16",
        ["rdma.hcas={mlx5_0}", "rdma.env.UCX_NET_DEVICES=mlx5_1:1"],
        r"rdma\.env\.UCX_NET_DEVICES: other values of rdma set it",
    ),
    (
        "h100-ep16",
        ["rdma.env.UCX_TLS=rc", "decode.extraEnv[0].name=UCX_TLS"],
        r"decode\.extraEnv: UCX_TLS is set twice",
    ),
    (None, ["scheduler.extraEnv[0].name=TZ", "scheduler.extraEnv[1].name=TZ"], r"scheduler\.extraEnv: TZ is set twice"),
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
    ("networkPolicy.clients=null", "clients"),  # would let everybody in
    ("networkPolicy.dependencies[0].ipBlock.cidr=banana", "cidr"),
    ("prefill=null", "prefill"),
    ("decode.lifecycle=null", "lifecycle"),
    ("decode.groups=1000000", "groups"),
    ("decode.topologyKey=my rack", "topologyKey"),
    ("decode.podLabels.tandem/group=1", "tandem/group"),
    ("scheduler.podLabels.app\\.kubernetes\\.io/component=x", "app.kubernetes.io/component"),
    ("scheduler.podAnnotations.tandem/config=x", "tandem/config"),
    ("decode.extraEnv[0].name=POD_IP", "extraEnv"),
    ("decode.autoscale.minGroups=0", "minGroups"),  # a pool without groups is never asked for any
    ("autoscaler.settings.ttft=2", "ttft"),
    ("autoscaler.settings.lease_name=x", "lease_name"),
    ("rdma.resources.hca=1", "hca"),
    ("rdma.hcas={mlx5_0:1}", "hcas"),
    ("rdma.interface=eth 0", "interface"),
    ("rdma.gidIndex=three", "gidIndex"),
    ("images.cpu.repository=registry:5000/tandem:1.2", "repository"),
    ("images.cpu.repository=https://registry/tandem", "repository"),
    ("images.pullSecrets={My_Secret}", "pullSecrets"),
    ("tls.caSecret.key=../ca", "key"),
    ("model.download.url=s3://models/v3", "url"),
    ("model.download.sums=/SHA256SUMS", "sums"),
    ("monitoring.podMonitor.interval=often", "interval"),
    ("nameOverride=" + "a" * 64, "nameOverride"),
    ("fullnameOverride=" + "a" * 41, "fullnameOverride"),
    ("fullnameOverride=1st", "fullnameOverride"),
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
    assert field in str(refused.value).partition("schema(s)")[2]
    assert "schema" in str(refused.value)


FINE = [
    "images.cpu.repository=registry.internal:5000/mirror/tandem-serve",
    "images.cpu.repository=10.0.0.1:5000/tandem_serve",
    "decode.podLabels.team=llm",
    "decode.extraEnv[0].name=NCCL_DEBUG",
    r"rdma.interface=^lo\,docker",
    "rdma.gidIndex=3",
    "decode.settings.max_running=null",
    "monitoring.podMonitor.interval=1m30s",
    "prefill.resources.limits.memory=2Ti",
    "prefill.resources.requests.memory=1073741824",
    "scheduler.resources.limits.cpu=2000m",
]


@pytest.mark.parametrize("setting", FINE)
def test_what_works_is_not_refused(helm4: Chart, setting: str) -> None:
    assert helm4.objects(None, [setting])


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
    said += refusal(replace(helm4, release="1st"), "local", ())
    untried = [m for m in messages if not re.search(".*?".join(map(re.escape, re.split(r"%\.?\d*[sdvf]", m))), said)]
    # The schema refuses `latest` first; the template's own check is for an appVersion of that name.
    assert untried == ["images.%s.tag = latest: name a version, or pods of one group run different code"]
