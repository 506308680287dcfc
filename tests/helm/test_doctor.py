"""The doctor and the chart speak of the same values, and no preset as it is rendered raises an alarm."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from services.launcher.doctor.check_node import SHM_BYTES
from services.launcher.doctor.diagnose import diagnose
from services.launcher.doctor.memory_need import RESERVED_BYTES, memory_need
from services.launcher.doctor.names import setting_of
from tests.helm.chart import CHART, PRESETS, ROOT, Chart
from tests.helm.test_presets import POD, config_of
from tests.services.launcher.doctor.healthy import GIB, V3, healthy
from tests.services.launcher.doctor.healthy import PRESETS as HEALTHY
from tests.services.launcher.doctor.test_diagnose import SEEDED

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("role", ["prefill", "decode", "scheduler"])
@pytest.mark.parametrize("preset", PRESETS)
def test_no_rendered_preset_raises_an_alarm(helm4: Chart, preset: str, role: str) -> None:
    config = config_of(helm4.objects(preset))
    facts = healthy(preset if preset in HEALTHY else "h200-single-node", role)  # type: ignore[arg-type]
    facts = replace(facts, config=config, node=replace(facts.node, addresses=frozenset({POD["POD_IP"]})))
    if config.model.device == "cpu":
        bundled = json.loads((ROOT / "models" / "tandem-bard" / "config.json").read_text())
        node = replace(facts.node, gpus=(), hcas=(), rdma_device=False, memory_bytes=3 * GIB, shm_bytes=256 << 20)
        facts = replace(facts, node=node, model=replace(facts.model, config=bundled), peers=())
    assert diagnose(facts) == []


@pytest.mark.parametrize("setting", sorted({setting for _, setting, _ in SEEDED}))
def test_settings_are_values_of_the_chart(setting: str) -> None:
    if not setting.startswith("node: "):
        assert_there(setting)


@pytest.mark.parametrize(
    "field",
    [
        "prefill.parallel.ep",
        "prefill.parallel.instances_per_pod",
        "decode.parallel.tp",
        "decode.parallel.groups",
        "model.path",
        "model.dtype",
        "block_tokens",
        "draft_tokens",
        "context_tokens",
        "redis.url",
        "nats.url",
    ],
)
def test_refused_fields_lead_to_values(field: str) -> None:
    assert_there(setting_of(field))


def assert_there(setting: str) -> None:
    found = VALUES
    for name in setting.split("."):
        assert isinstance(found, dict), setting
        assert name in found, f"{setting}: values.yaml has no {name}"
        found = found[name]
    assert re.fullmatch(r"[A-Za-z.]+", setting)


def test_the_chart_asks_for_no_less_than_the_doctor() -> None:
    """What the chart lets pass, the doctor before each worker does not refuse."""
    text = (CHART / "templates/_checks_pod.tpl").read_text()
    found = re.search(r'ternary "(\d+)Gi" "(\d+)Mi" \(eq \.root\.Values\.model\.device "cuda"\)', text)
    assert found
    assert {"cuda": int(found[1]) << 30, "cpu": int(found[2]) << 20} == SHM_BYTES
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    for role in ("prefill", "decode"):
        assert schema[role]["properties"]["gpu"]["properties"]["reserveGiB"]["minimum"] == RESERVED_BYTES / GIB


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("preset", sorted(HEALTHY))
def test_the_chart_counts_no_less_memory_than_the_doctor(preset: str, role: str) -> None:
    facts = healthy(preset, role)  # type: ignore[arg-type]
    need = memory_need(facts.config, role, V3)  # type: ignore[arg-type]
    assert need is not None
    said = VALUES["model"]["facts"]
    shape = yaml.safe_load((CHART / f"values-{preset}.yaml").read_text())[role]
    assert said["expertGiB"] / shape["ep"] == pytest.approx(need.experts / GIB, rel=0.005)
    assert need.others / GIB <= said["otherGiB"]
    latent = shape["settings"]["blocks"] * 64 * said["latentLayers"] * said["latentWidth"] * 2
    assert latent == need.latent
