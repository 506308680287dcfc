"""Sizes of known models, against published counts."""

import json

import pytest

from common.errors import InvalidInput
from loadgen.planner.model_shapes import model_shape, shape_from_config

V3 = model_shape("deepseek-v3")


def test_v3_counts_what_its_authors_publish():
    assert round(V3.parameters() / 1e9) == 671
    # The published checkpoint holds 685 billion with the multi-token-prediction layer.
    assert 684e9 < V3.parameters(mtp=True) < 685e9
    assert round(V3.active_parameters() / 1e9) == 37


def test_latent_bytes_a_token():
    assert V3.latent_bytes_per_token() == 70_272
    assert V3.latent_bytes_per_token(mtp=True) == 71_424


@pytest.mark.parametrize(("name", "total", "active"), [("deepseek-v2-lite", 15.7, 2.4), ("mixtral-8x7b", 46.7, 12.7)])
def test_other_models(name, total, active):
    shape = model_shape(name)
    assert shape.parameters() / 1e9 == pytest.approx(total, abs=0.05)
    assert shape.active_parameters() / 1e9 == pytest.approx(active, abs=0.06)


def test_expert_bytes_count_scales_of_partial_blocks():
    # Three matrices of 2048 x 7168 in FP8, one fp32 scale per 128 x 128 block.
    assert V3.expert_bytes() == 3 * (2048 * 7168 + 4 * 16 * 56)
    # The latent projection's 576 rows are four and a half blocks: five rows of scales.
    assert V3.linear_weight_bytes(576, 7168) == 576 * 7168 + 4 * 5 * 56


def test_a_config_file_is_read_from_its_folder(tmp_path):
    config = {
        "model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
        "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "n_shared_experts": 1,
        "n_routed_experts": 8, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
        "v_head_dim": 32, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = model_shape(str(tmp_path))
    assert shape.latent_bytes_per_token() == 2 * (64 + 16) * 4
    assert shape.linear_bytes == 2
    assert shape.moe_layers == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "model.hidden_size"),
        ({"hidden_size": "7168"}, "model.hidden_size"),
        ({"num_hidden_layers": 0}, "model.num_hidden_layers"),
        ({"num_experts_per_tok": 300}, "model.num_experts_per_tok"),
        ({"first_k_dense_replace": 99}, "model.first_k_dense_replace"),
        ({"model_type": "llama"}, "model.model_type"),
    ],
)
def test_a_bad_config_names_its_key(change, field):
    config = {
        "model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
        "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "n_routed_experts": 8,
        "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_experts_per_tok": 2,
    }  # fmt: skip
    with pytest.raises(InvalidInput) as caught:
        shape_from_config("broken", {**config, **change})
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["no-such-model", "/nowhere/config.json"])
def test_an_unknown_model_is_refused(text):
    with pytest.raises(InvalidInput, match="a preset"):
        model_shape(text)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match="valid JSON"):
        model_shape(str(tmp_path))
