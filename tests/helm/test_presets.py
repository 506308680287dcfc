"""Each preset under both versions of Helm: lint, schemas of the oldest and newest Kubernetes, a file that loads."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config.autoscaler import AutoscalerConfig
from common.config.cluster import ClusterConfig, DecodeConfig, PrefillConfig, SchedulerConfig, WorkerConfig
from common.config.load import parse_cluster, with_environment
from common.config.place import ROLES, parallel_of
from tests.helm.chart import CHART, PRESETS, ROOT, Chart, tandem_yaml
from tests.helm.objects import KUBERNETES, Object, faults_of, kinds, one

POD = {"POD_IP": "10.0.0.1", "TANDEM_REDIS_URL": "redis://redis:6379/0", "TANDEM_NATS_URL": "nats://nats:4222"}
FACTS = {
    "routedExperts": "n_routed_experts",
    "attentionHeads": "num_attention_heads",
    "mtpLayers": "num_nextn_predict_layers",
    "contextTokens": "max_position_embeddings",
}


def config_of(objects: list[Object]) -> ClusterConfig:
    document = with_environment(yaml.safe_load(tandem_yaml(objects)), POD, "tandem.yaml")
    return parse_cluster(document, "tandem.yaml")


def values_of(preset: str) -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / f"values-{preset}.yaml").read_text()))


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_what_kubernetes_takes_and_its_file_loads(helm4: Chart, preset: str) -> None:
    check_preset(helm4, preset)


@pytest.mark.helm
@pytest.mark.parametrize("preset", PRESETS)
def test_the_older_helm_takes_it_too(helm_binaries: dict[str, Path], preset: str) -> None:
    check_preset(Chart(helm_binaries["helm3"]), preset)


def check_preset(chart: Chart, preset: str) -> None:
    chart.lint("-f", str(CHART / f"values-{preset}.yaml"))
    objects = chart.objects(preset)
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
    config = config_of(objects)
    values = values_of(preset)
    for role in ROLES:
        parallel = parallel_of(config, role)
        shape = values[role]
        assert (parallel.ep, parallel.tp, parallel.dp) == (shape["ep"], shape["tp"], shape["dp"])
        assert (parallel.pods_per_group, parallel.instances_per_pod * parallel.tp) == (
            shape["nodes"],
            shape["gpusPerNode"],
        )


def test_the_defaults_render(chart: Chart) -> None:
    chart.lint()
    objects = chart.objects()
    assert [fault for o in objects for version in KUBERNETES for fault in faults_of(o, version)] == []
    assert kinds(objects)["LeaderWorkerSet"] == 2


def test_ep128_is_sixteen_nodes_of_eight(helm4: Chart) -> None:
    decode = one(helm4.objects("h100-ep128"), "LeaderWorkerSet", "-decode")["spec"]
    assert decode["leaderWorkerTemplate"]["size"] == 16
    (container,) = decode["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_presets_cover_what_is_promised() -> None:
    wanted = {"local", "h200-single-node", *(f"h100-ep{ep}" for ep in (16, 32, 64, 128)), "gb200-nvl72"}
    assert set(PRESETS) == wanted
    assert "UNTESTED" in (CHART / "values-gb200-nvl72.yaml").read_text()


@pytest.mark.parametrize(
    ("facts", "checkpoint"),
    [
        ("values", ROOT / "loadgen/planner/configs/deepseek-v3.json"),
        ("values-local", ROOT / "models/tandem-bard/config.json"),
    ],
)
def test_facts_are_the_checkpoints(facts: str, checkpoint: Path) -> None:
    said = yaml.safe_load((CHART / f"{facts}.yaml").read_text())["model"]["facts"]
    fields = json.loads(checkpoint.read_text())
    assert {name: said[name] for name in FACTS} == {name: fields[field] for name, field in FACTS.items()}
    assert said["latentLayers"] == fields["num_hidden_layers"] + fields["num_nextn_predict_layers"]
    assert said["latentWidth"] == fields["kv_lora_rank"] + fields["qk_rope_head_dim"]


def test_weights_of_v3_are_what_its_shape_says() -> None:
    """FP8: one byte a parameter. Experts are three matrices each, in every layer but the dense ones, and in MTP's."""
    said = yaml.safe_load((CHART / "values.yaml").read_text())["model"]["facts"]
    v3 = json.loads((ROOT / "loadgen/planner/configs/deepseek-v3.json").read_text())
    layers = v3["num_hidden_layers"] + v3["num_nextn_predict_layers"] - v3["first_k_dense_replace"]
    experts = layers * v3["n_routed_experts"] * 3 * v3["hidden_size"] * v3["moe_intermediate_size"]
    assert said["expertGiB"] == pytest.approx(experts / 2**30, rel=0.005)


def test_the_oldest_kubernetes_is_the_charts() -> None:
    assert f">={KUBERNETES[0]}.0-0" in (CHART / "Chart.yaml").read_text()
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert f"kubernetes-validate=={KUBERNETES[1]}.0" in pinned


SECTIONS = {
    "workerSettings": WorkerConfig,
    "prefillSettings": PrefillConfig,
    "decodeSettings": DecodeConfig,
}


@pytest.mark.parametrize("definition", SECTIONS)
def test_the_schema_knows_the_files_fields(definition: str) -> None:
    """Settings that the chart hands on are the file's fields, less those that it fills in itself."""
    schema = json.loads((CHART / "values.schema.json").read_text())["$defs"][definition]["properties"]
    fields = set(SECTIONS[definition].model_fields)
    own = {
        "host", "first_port", "first_metrics_port", "start_timeout_s", "drain_timeout_s", "parallel", "worker",
        "lease_s",
    }  # fmt: skip
    assert set(schema) == fields - own


def test_the_schema_knows_the_schedulers_fields() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["scheduler"]["properties"]["settings"]
    own = {"replicas", "host", "port", "http_port", "metrics_port", "drain_timeout_s"}
    assert set(schema["properties"]) == set(SchedulerConfig.model_fields) - own


def test_the_schema_knows_the_autoscalers_fields() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["autoscaler"]["properties"]
    own = {
        "host", "metrics_port", "schedulers", "group_controller", "selector", "lease_name", "prefill", "decode",
    }  # fmt: skip
    assert set(schema["settings"]["properties"]) == set(AutoscalerConfig.model_fields) - own


def test_defaults_that_the_checks_assume_are_the_processes() -> None:
    text = (CHART / "templates/_checks.tpl").read_text() + (CHART / "templates/_checks_pod.tpl").read_text()
    assumed = {name: float(value) for value, name in re.findall(r"default (\d+) \$\w+(?:\.\w+)*\.(\w+_\w+)", text)}
    fields = DecodeConfig.model_fields | AutoscalerConfig.model_fields
    assert len(assumed) == 7
    assert assumed == {name: fields[name].default for name in assumed}


PASSED_ON = {"settings", "worker", "resources", "layout"}  # as they are, so nothing in them must be there


def test_no_default_can_be_taken_away() -> None:
    """A null in a values file removes the default; what a template then finds missing is refused before."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def walk(part: dict[str, Any], values: dict[str, Any], path: str) -> None:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/")[-1]]
        if "properties" not in part:
            return
        assert set(part["required"]) == set(values), path
        for name, below in values.items():
            if isinstance(below, dict) and name not in PASSED_ON:
                walk(part["properties"][name], below, f"{path}.{name}")

    walk(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "")
