"""What a checkpoint's config.json says of a model, checked once. No torch: the scheduler reads it too.

Taken are the architectures `deepseek_v3` (also R1) and `deepseek_v2` (also V2-Lite): latent attention with or without
query compression, and a gate that scores by sigmoid or softmax, limits groups or not, and may have a correction bias.
Plain top-k as in Mixtral is one group, softmax scores and normalised weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.config.checkpoint import read_checkpoint_config
from common.errors import ConfigError

FP8_BLOCK = 128

Scoring = Literal["sigmoid", "softmax"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """Context extension of the rotary embedding (YaRN, arXiv 2309.00071)."""

    factor: float
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class GateConfig:
    """How a token chooses its experts (DeepSeek-V3 report, eq. 13-16)."""

    experts: int
    top_k: int
    groups: int
    kept_groups: int
    scoring: Scoring
    correction_bias: bool
    normalize: bool
    scale: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model. A layer below `dense_layers` has a dense MLP, the others experts."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    dense_layers: int
    mtp_layers: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    shared_experts: int
    gate: GateConfig
    rms_norm_eps: float
    rope_theta: float
    yarn: Yarn | None
    context_tokens: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    tied_embeddings: bool
    fp8_weights: bool

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Values cached per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def latent_layers(self) -> int:
        """Layers of the cache, the MTP layer included."""
        return self.layers + self.mtp_layers

    @property
    def has_mtp(self) -> bool:
        return self.mtp_layers > 0


def read_model_config(directory: Path) -> ModelConfig:
    """Read and check ``config.json`` of a Hugging Face directory.

    Raises:
        CheckpointError: the file is absent or not JSON.
        ConfigError: a field is missing or out of its limits.
    """
    return parse_model_config(read_checkpoint_config(directory))


def parse_model_config(raw: Mapping[str, object]) -> ModelConfig:
    """The model that the fields of a config.json describe.

    Raises:
        ConfigError: names the field, its value and the limit.
    """
    architecture = _one_of(raw, "model_type", ("deepseek_v3", "deepseek_v2"))
    _fixed(raw, "hidden_act", "silu")
    _fixed(raw, "attention_bias", False)
    _fixed(raw, "moe_layer_freq", 1)
    _fixed(raw, "rope_interleave", True)
    layers = _integer(raw, "num_hidden_layers", least=1)
    dense_layers = _integer(raw, "first_k_dense_replace", least=0, most=layers - 1, default=0)
    heads = _integer(raw, "num_attention_heads", least=1)
    _fixed(raw, "num_key_value_heads", heads)
    rope_theta, yarn = _rope(raw)
    rope_dim = _integer(raw, "qk_rope_head_dim", least=2)
    if rope_dim % 2:
        raise _refusal("qk_rope_head_dim", rope_dim, "must be even")
    vocab_size = _integer(raw, "vocab_size", least=2)
    mtp_field = "num_mtp_layers" if "num_mtp_layers" in raw else "num_nextn_predict_layers"
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=_integer(raw, "hidden_size", least=1),
        layers=layers,
        dense_layers=dense_layers,
        mtp_layers=_integer(raw, mtp_field, least=0, most=1, default=0),
        heads=heads,
        q_lora_rank=None if raw.get("q_lora_rank") is None else _integer(raw, "q_lora_rank", least=1),
        kv_lora_rank=_integer(raw, "kv_lora_rank", least=1),
        qk_nope_head_dim=_integer(raw, "qk_nope_head_dim", least=1),
        qk_rope_head_dim=rope_dim,
        v_head_dim=_integer(raw, "v_head_dim", least=1),
        intermediate_size=_integer(raw, "intermediate_size", least=1),
        moe_intermediate_size=_integer(raw, "moe_intermediate_size", least=1),
        shared_experts=0
        if raw.get("n_shared_experts") is None
        else _integer(raw, "n_shared_experts", least=0, default=0),
        gate=_gate(raw, architecture),
        rms_norm_eps=_real(raw, "rms_norm_eps", above=0.0, default=1e-6),
        rope_theta=rope_theta,
        yarn=yarn,
        context_tokens=_integer(raw, "max_position_embeddings", least=2),
        bos_token_id=None
        if raw.get("bos_token_id") is None
        else _integer(raw, "bos_token_id", least=0, most=vocab_size - 1),
        eos_token_ids=_eos(raw, vocab_size),
        tied_embeddings=_flag(raw, "tie_word_embeddings", default=False),
        fp8_weights=_fp8(raw),
    )


def _gate(raw: Mapping[str, object], architecture: str) -> GateConfig:
    experts = _integer(raw, "n_routed_experts", least=1)
    v3 = architecture == "deepseek_v3"
    method = _one_of(
        raw,
        "topk_method",
        ("noaux_tc",) if v3 else ("greedy", "group_limited_greedy"),
        default="noaux_tc" if v3 else "greedy",
    )
    scoring = _one_of(raw, "scoring_func", ("sigmoid",) if v3 else ("softmax",), default="sigmoid" if v3 else "softmax")
    # V2-Lite states groups beside "greedy", which ignores them.
    limited = method != "greedy"
    groups = _integer(raw, "n_group", least=1, most=experts) if limited else 1
    if experts % groups:
        raise _refusal("n_group", groups, f"must divide n_routed_experts = {experts}")
    kept = _integer(raw, "topk_group", least=1, most=groups) if limited else 1
    if v3 and experts // groups < 2 and groups > 1:
        raise _refusal("n_group", groups, f"groups must hold two experts or more of {experts}")
    top_k = _integer(raw, "num_experts_per_tok", least=1, most=kept * (experts // groups))
    return GateConfig(
        experts=experts,
        top_k=top_k,
        groups=groups,
        kept_groups=kept,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        correction_bias=method == "noaux_tc",
        normalize=_flag(raw, "norm_topk_prob", default=v3),
        scale=_real(raw, "routed_scaling_factor", above=0.0, default=2.5 if v3 else 1.0),
    )


def _rope(raw: Mapping[str, object]) -> tuple[float, Yarn | None]:
    """`rope_theta` beside `rope_scaling` as DeepSeek writes it, or both inside `rope_parameters` as newer tools do."""
    joined = raw.get("rope_parameters")
    field = "rope_scaling" if joined is None else "rope_parameters"
    scaling = raw.get(field)
    if scaling is not None and not isinstance(scaling, dict):
        raise _refusal(field, scaling, "must be an object")
    fields: Mapping[str, object] = scaling or {}
    theta = _real(fields if "rope_theta" in fields else raw, "rope_theta", above=1.0, default=10000.0)
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "yarn":
        raise _refusal(f"{field}.type", kind, "must be yarn or default")
    return theta, Yarn(
        factor=_real(fields, "factor", above=0.0),
        beta_fast=_real(fields, "beta_fast", above=0.0, default=32.0),
        beta_slow=_real(fields, "beta_slow", above=0.0, default=1.0),
        mscale=_real(fields, "mscale", above=-1e-9, default=1.0),
        mscale_all_dim=_real(fields, "mscale_all_dim", above=-1e-9, default=0.0),
        original_context_tokens=_integer(fields, "original_max_position_embeddings", least=1),
    )


def _fp8(raw: Mapping[str, object]) -> bool:
    quantization = raw.get("quantization_config")
    if quantization is None:
        return False
    if not isinstance(quantization, dict):
        raise _refusal("quantization_config", quantization, "must be an object")
    _one_of(quantization, "quant_method", ("fp8",))
    _fixed(quantization, "fmt", "e4m3")
    _fixed(quantization, "weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    return True


def _eos(raw: Mapping[str, object], vocab_size: int) -> tuple[int, ...]:
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(_integer({"eos_token_id": i}, "eos_token_id", least=0, most=vocab_size - 1) for i in ids)


def _refusal(field: str, value: object, limit: str) -> ConfigError:
    return ConfigError(f"config.json: {field} = {value!r}: {limit}")


def _integer(
    raw: Mapping[str, object], field: str, *, least: int, most: int | None = None, default: int | None = None
) -> int:
    value = raw.get(field, default)
    limit = f"must be an integer of at least {least}" + ("" if most is None else f" and at most {most}")
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise _refusal(field, value, limit)
    return value


def _real(raw: Mapping[str, object], field: str, *, above: float, default: float | None = None) -> float:
    value = raw.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > above:
        raise _refusal(field, value, f"must be a number above {above:g}")
    return float(value)


def _flag(raw: Mapping[str, object], field: str, *, default: bool) -> bool:
    value = raw.get(field, default)
    if not isinstance(value, bool):
        raise _refusal(field, value, "must be true or false")
    return value


def _one_of(raw: Mapping[str, object], field: str, allowed: tuple[str, ...], default: str | None = None) -> str:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, str) or value not in allowed:
        raise _refusal(field, value, f"must be one of {', '.join(allowed)}")
    return value


def _fixed(raw: Mapping[str, object], field: str, only: object) -> None:
    value = raw.get(field)
    if value is not None and value != only:
        raise _refusal(field, value, f"must be {only!r}")
