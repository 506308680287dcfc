import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import CheckpointError, ConfigError
from common.model.config import GateConfig, Yarn, parse_model_config, read_model_config
from tests.oracle.configurations import configuration

# config.json of the published DeepSeek-V3, as far as an architecture is concerned.
V3: dict[str, Any] = configuration("base") | {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "first_k_dense_replace": 3, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_layer_freq": 1, "ep_size": 1, "pretraining_tp": 1, "seq_aux": True,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
}  # fmt: skip


def test_deepseek_v3() -> None:
    config = parse_model_config(V3)
    assert (config.latent_width, config.latent_layers, config.qk_head_dim) == (576, 62, 192)
    assert config.latent_width * config.layers * 2 == 70272  # bytes a token in bf16
    assert config.gate == GateConfig(256, 8, 8, 4, "sigmoid", True, True, 2.5)
    assert config.yarn == Yarn(40.0, 32.0, 1.0, 1.0, 1.0, 4096)
    assert config.fp8_weights
    assert (config.bos_token_id, config.eos_token_ids) == (0, (1,))


def test_deepseek_v2_lite() -> None:
    config = parse_model_config(configuration("v2_lite", n_group=8, topk_group=3))
    # Its config.json states groups that "greedy" ignores.
    assert config.gate == GateConfig(16, 4, 1, 1, "softmax", False, False, 1.0)
    assert config.q_lora_rank is None
    assert not config.has_mtp


def test_plain_top_k_is_one_group_of_softmax_scores() -> None:
    gate = parse_model_config(configuration("v2_lite", norm_topk_prob=True, num_experts_per_tok=2)).gate
    assert (gate.groups, gate.scoring, gate.normalize, gate.correction_bias) == (1, "softmax", True, False)


def test_rope_parameters_as_newer_tools_write_them() -> None:
    fields = configuration("base")
    scaling = fields.pop("rope_scaling")
    joined = {**scaling, "rope_theta": fields.pop("rope_theta"), "rope_type": scaling.pop("type")}
    assert parse_model_config(fields | {"rope_parameters": joined}) == parse_model_config(configuration("base"))


def test_without_yarn() -> None:
    assert parse_model_config(configuration("base", rope_scaling=None)).yarn is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, r"model_type = 'llama': must be one of deepseek_v3, deepseek_v2"),
        ({"model_type": None}, r"model_type = None"),
        ({"vocab_size": "512"}, r"vocab_size = '512': must be an integer of at least 2"),
        ({"vocab_size": True}, r"vocab_size = True"),
        ({"hidden_size": 0}, r"hidden_size = 0: must be an integer of at least 1"),
        ({"num_hidden_layers": -1}, r"num_hidden_layers = -1"),
        ({"first_k_dense_replace": 4}, r"first_k_dense_replace = 4: must be an integer of at least 0 and at most 3"),
        ({"qk_rope_head_dim": 15}, r"qk_rope_head_dim = 15: must be even"),
        ({"n_group": 3}, r"n_group = 3: must divide n_routed_experts = 16"),
        ({"n_group": 16}, r"n_group = 16: groups must hold two experts or more of 16"),
        ({"topk_group": 5}, r"topk_group = 5: .* at most 4"),
        ({"num_experts_per_tok": 9}, r"num_experts_per_tok = 9: .* at most 8"),
        ({"topk_method": "greedy"}, r"topk_method = 'greedy': must be one of noaux_tc"),
        ({"scoring_func": "softmax"}, r"scoring_func = 'softmax': must be one of sigmoid"),
        ({"routed_scaling_factor": 0}, r"routed_scaling_factor = 0: must be a number above 0"),
        ({"rms_norm_eps": float("nan")}, r"rms_norm_eps = nan"),
        ({"norm_topk_prob": 1}, r"norm_topk_prob = 1: must be true or false"),
        ({"num_nextn_predict_layers": 2}, r"num_nextn_predict_layers = 2: .* at most 1"),
        ({"num_key_value_heads": 2}, r"num_key_value_heads = 2: must be 4"),
        ({"attention_bias": True}, r"attention_bias = True: must be False"),
        ({"hidden_act": "gelu"}, r"hidden_act = 'gelu': must be 'silu'"),
        ({"eos_token_id": [1, 512]}, r"eos_token_id = 512: .* at most 511"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, r"rope_scaling.type = 'linear': must be yarn or default"),
        ({"rope_scaling": 4}, r"rope_scaling = 4: must be an object"),
        ({"rope_scaling": {"type": "yarn"}}, r"factor = None: must be a number above 0"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quant_method = 'awq': must be one of fp8"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}},
            r"weight_block_size = \[64, 128\]: must be \[128, 128\]",
        ),
    ],
)
def test_a_refusal_names_field_value_and_limit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_model_config(configuration("base", **changes))


@pytest.mark.parametrize("field", ["vocab_size", "kv_lora_rank", "n_group", "v_head_dim", "max_position_embeddings"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = configuration("base")
    del fields[field]
    with pytest.raises(ConfigError, match=f"{field} = None"):
        parse_model_config(fields)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_model_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.path = x+: File name too long"):  # stands for all that forbid it
        read_model_config(Path("x" * 300))
    for content in ("{", "[]", "\xff"):
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(V3))
    assert read_model_config(tmp_path) == parse_model_config(V3)
