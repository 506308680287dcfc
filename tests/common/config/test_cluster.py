from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config.cluster import ClusterConfig
from common.config.load import dump_cluster, load_cluster, parse_cluster, with_environment
from common.errors import CheckpointError, ConfigError

MODEL: dict[str, Any] = {"path": "model", "name": "tiny"}
CHECKPOINT = (
    '{"n_routed_experts": 16, "num_attention_heads": 6, "max_position_embeddings": 8192, "num_nextn_predict_layers": 1}'
)


def write(directory: Path, document: dict[str, Any], checkpoint: str | None = CHECKPOINT) -> Path:
    (directory / "model").mkdir()
    if checkpoint is not None:
        (directory / "model" / "config.json").write_text(checkpoint)
    file = directory / "cluster.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_defaults_are_enough_and_the_model_path_is_taken_from_the_file(tmp_path: Path) -> None:
    config = load_cluster(write(tmp_path, {"model": MODEL}))
    assert config.model.path == str(tmp_path / "model")
    assert config.context_blocks == 64


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, {"model": MODEL, "decode": {"blocks": 100}})
    config = load_cluster(file, ["decode.parallel.ep=2", "decode.blocks=200", "model.name=other"])
    assert (config.decode.parallel.ep, config.decode.blocks, config.model.name) == (2, 200, "other")


def test_the_dump_reads_back_equal() -> None:
    config = ClusterConfig.model_validate({"model": MODEL, "prefill": {"parallel": {"ep": 4, "tp": 2}}})
    assert parse_cluster(yaml.safe_load(dump_cluster(config)), "dump") == config


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({}, ["model: must be given"]),
        ({"model": MODEL, "decod": {}}, ["decod: no such field"]),
        ({"model": MODEL, "decode": {"parallel": {"ep": 3, "tp": 2}}}, ["decode.parallel", "ep = 3", "tp = 2"]),
        ({"model": MODEL, "decode": {"parallel": {"ep": 4, "instances_per_pod": 3}}}, ["instances_per_pod = 3", "4"]),
        ({"model": MODEL, "prefill": {"blocks": 10}}, ["prefill.blocks = 10", "context_tokens = 4096", "64"]),
        ({"model": MODEL, "draft_tokens": -1}, ["draft_tokens = -1", "greater than or equal to 0"]),
        ({"model": MODEL, "cluster": "a b"}, ["cluster = 'a b'"]),
        ({"model": MODEL, "decode": {"landing_blocks": 8}}, ["draining_blocks_limit = 48", "landing_blocks = 8"]),
        ({"model": MODEL, "decode": {"landing_blocks": 48}}, ["draining_blocks_limit = 48", "below landing_blocks"]),
        ({"model": MODEL | {"dtype": "fp4"}, "block_tokens": 0}, ["model.dtype = 'fp4'", "block_tokens = 0"]),
        ({"model": MODEL, "prefill": {"lease_s": float("inf")}}, ["prefill.lease_s"]),
    ],
)
def test_a_bad_file_is_refused_with_file_field_value_and_limit(
    tmp_path: Path, document: dict[str, Any], named: list[str]
) -> None:
    file = write(tmp_path, document)
    with pytest.raises(ConfigError) as refusal:
        load_cluster(file)
    for part in [str(file), *named]:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["decode.parallel.ep=3"], ["decode.parallel.ep = 3", "16 routed experts"]),
        (["prefill.parallel.ep=4", "prefill.parallel.tp=4"], ["prefill.parallel.tp = 4", "6 attention heads"]),
        (["context_tokens=9000", "prefill.blocks=999", "decode.blocks=999"], ["context_tokens = 9000", "8192"]),
        (["decode.blocks.x"], ["dotted.field=value"]),
        (["model.name.x=1"], ["name is a value"]),
    ],
)
def test_what_the_model_does_not_allow_is_refused(tmp_path: Path, settings: list[str], named: list[str]) -> None:
    file = write(tmp_path, {"model": MODEL})
    with pytest.raises(ConfigError) as refusal:
        load_cluster(file, settings)
    for part in named:
        assert part in str(refusal.value)


def test_drafts_need_an_mtp_layer(tmp_path: Path) -> None:
    file = write(tmp_path, {"model": MODEL}, checkpoint="{}")
    with pytest.raises(ConfigError, match="draft_tokens = 1: the model has no MTP layer"):
        load_cluster(file)
    assert load_cluster(file, ["draft_tokens=0"]).draft_tokens == 0


@pytest.mark.parametrize("checkpoint", [None, "{", "[]"])
def test_a_directory_without_a_readable_config_is_a_checkpoint_error(tmp_path: Path, checkpoint: str | None) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_cluster(write(tmp_path, {"model": MODEL}, checkpoint))


@pytest.mark.parametrize("text", ["- a", "a: [", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"cluster\.yaml"):
        load_cluster(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_cluster(tmp_path / "nowhere.yaml")


def test_whole_values_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_ADDRESS", "10.0.0.7")
    monkeypatch.setenv("CONTEXT", "2048")
    worker = {"host": "${POD_ADDRESS}"}
    file = write(tmp_path, {"model": MODEL, "context_tokens": "${CONTEXT}", "decode": {"worker": worker}})
    config = load_cluster(file)
    assert (config.decode.worker.host, config.context_tokens) == ("10.0.0.7", 2048)


def test_unset_variables_are_named_with_their_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_ADDRESS", raising=False)
    monkeypatch.setenv("NATS_ADDRESS", "")
    document = {"model": MODEL, "redis": {"url": "${REDIS_ADDRESS}"}, "nats": {"url": "${NATS_ADDRESS}"}}
    with pytest.raises(ConfigError) as refused:
        load_cluster(write(tmp_path, document))
    assert "redis.url = ${REDIS_ADDRESS}: the environment variable REDIS_ADDRESS is not set" in str(refused.value)
    assert "nats.url" in str(refused.value)


def test_a_reference_within_a_value_is_text() -> None:
    assert with_environment({"a": {"b": ["x${HOME}", "${1}"]}}, {"HOME": "/root"}, "it") == {
        "a": {"b": ["x${HOME}", "${1}"]}
    }


@pytest.mark.parametrize(("raw", "named"), [(b"a: [1", "not YAML"), (b"\xff\xfe", "not a text in UTF-8")])
def test_a_file_that_is_no_yaml_is_refused_in_one_line(tmp_path: Path, raw: bytes, named: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match=named) as refused:
        load_cluster(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: {path: a, name: a}\nblock_tokens: 64\nmodel: {path: b, name: b}\n", "key model .* lines 1 and 3"),
        ("decode:\n  blocks: 1\n  max_running: 2\n  blocks: 3\n", "key blocks .* lines 2 and 4"),
        ("decode: {blocks: 1, 'blocks': 3}\n", "key blocks .* lines 1 and 1"),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_its_lines(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{file}: the {named}"):
        load_cluster(file)


def test_equal_keys_of_different_sections_are_no_repetition(tmp_path: Path) -> None:
    file = write(tmp_path, {"model": MODEL})
    # What is merged may be given again.
    file.write_text(file.read_text() + "prefill: &pool\n  blocks: 99\ndecode:\n  <<: *pool\n  blocks: 100\n")
    config = load_cluster(file)
    assert (config.prefill.blocks, config.decode.blocks) == (99, 100)


def test_a_setting_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"setting 'block_tokens=\[1': not YAML"):
        load_cluster(write(tmp_path, {"model": MODEL}), ["block_tokens=[1"])


@pytest.mark.parametrize(
    ("section", "url", "fine"),
    [
        ("redis", "embedded", True),
        ("redis", "rediss://user:secret@host:6379/0", True),
        ("redis", "hello", False),
        ("redis", "redis://host:secret", False),
        ("nats", "nats://a:4222,nats://b:4222", True),
        ("nats", "host:4222", False),
    ],
)
def test_urls_are_checked_before_a_process_needs_them_and_never_shown(section: str, url: str, fine: bool) -> None:
    document = {"model": MODEL, section: {"url": url}}
    if fine:
        parse_cluster(document, "test")
        return
    with pytest.raises(ConfigError, match=rf"test: {section}.url: must be embedded or") as refused:
        parse_cluster(document, "test")
    assert url not in str(refused.value)
