"""A model as the planner sees it: sizes read from a Hugging Face `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from common.errors import InvalidInput

_FP8_BLOCK = 128


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model. `kv_lora_rank == 0` means grouped-query attention (Mixtral), else latent attention (MLA).

    `linear_bytes` is the width of a weight of a linear layer: 1 with FP8 blocks, else 2. Embeddings, the head, norms
    and the gate always stay in bf16 (the gate's correction bias in fp32).
    """

    name: str
    hidden: int
    layers: int
    dense_layers: int
    mtp_layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int
    dense_intermediate: int
    expert_intermediate: int
    experts: int
    shared_experts: int
    top_k: int
    groups: int
    top_groups: int
    linear_bytes: int
    tied_embeddings: bool

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def qk_dim(self) -> int:
        return self.qk_nope_dim + self.qk_rope_dim

    @property
    def latent_values(self) -> int:
        """Values cached per token and layer: 512 + 64 for V3; both K and V of every key-value head otherwise."""
        return self.kv_lora_rank + self.qk_rope_dim if self.is_mla else 2 * self.kv_heads * self.head_dim

    def latent_bytes_per_token(self, *, mtp: bool = False) -> int:
        """Cache bytes of one token over all layers in bf16: 70,272 for V3, 71,424 with its MTP layer."""
        return 2 * self.latent_values * (self.layers + (self.mtp_layers if mtp else 0))

    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of every linear layer of one attention block, unsharded."""
        if not self.is_mla:
            kv = self.kv_heads * self.head_dim
            q = self.heads * self.head_dim
            return ((q, self.hidden), (kv, self.hidden), (kv, self.hidden), (self.hidden, q))
        q_out = self.heads * self.qk_dim
        q_matrices: tuple[tuple[int, int], ...] = ((q_out, self.hidden),)
        if self.q_lora_rank:
            q_matrices = ((self.q_lora_rank, self.hidden), (q_out, self.q_lora_rank))
        return (
            *q_matrices,
            (self.latent_values, self.hidden),
            (self.heads * (self.qk_nope_dim + self.v_dim), self.kv_lora_rank),
            (self.hidden, self.heads * self.v_dim),
        )

    def attention_norms(self) -> int:
        """Parameters of the norms of one layer: input, post-attention, and those of the low-rank projections."""
        return 2 * self.hidden + (self.q_lora_rank + self.kv_lora_rank if self.is_mla else 0)

    def expert_matrices(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of gate, up and down of one routed expert."""
        i, h = self.expert_intermediate, self.hidden
        return ((i, h), (i, h), (h, i))

    def dense_matrices(self) -> tuple[tuple[int, int], ...]:
        i, h = self.dense_intermediate, self.hidden
        return ((i, h), (i, h), (h, i))

    def parameters(self, *, mtp: bool = False) -> int:
        """All parameters: 671.03 billion for V3, 684.5 with the MTP layer (which has its own embedding and head)."""
        attention = _count(self.attention_matrices()) + self.attention_norms()
        moe = (self.experts + self.shared_experts) * _count(self.expert_matrices()) + self._gate()
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        total = self.layers * attention + self.dense_layers * _count(self.dense_matrices()) + self.moe_layers * moe
        if mtp:
            # eh_proj [hidden, 2 hidden], three norms of its own, and its copies of embedding and head.
            own = 2 * self.hidden * self.hidden + 3 * self.hidden + 2 * self.vocabulary * self.hidden
            total += self.mtp_layers * (attention + moe + own)
        return total + embeddings + self.hidden

    def active_parameters(self) -> int:
        """Parameters one token meets, embedding lookup excluded: about 37 billion for V3."""
        idle = (self.experts - self.top_k) * _count(self.expert_matrices()) * self.moe_layers
        lookup = 0 if self.tied_embeddings else self.vocabulary * self.hidden
        return self.parameters() - idle - lookup

    def linear_weight_bytes(self, out: int, width: int) -> int:
        """Bytes of one [out, width] linear weight with its scales (fp32 per 128x128 block, partial edges included)."""
        scales = 4 * -(-out // _FP8_BLOCK) * -(-width // _FP8_BLOCK) if self.linear_bytes == 1 else 0
        return out * width * self.linear_bytes + scales

    def expert_bytes(self) -> int:
        """Weight bytes of one routed expert in one layer (44.05 MB for V3)."""
        return sum(self.linear_weight_bytes(*matrix) for matrix in self.expert_matrices())

    def gate_bytes(self) -> int:
        return self.experts * self.hidden * 2 + self.experts * 4

    def _gate(self) -> int:
        bias = self.experts if self.is_mla else 0
        return self.experts * self.hidden + bias


def _count(matrices: tuple[tuple[int, int], ...]) -> int:
    return sum(out * width for out, width in matrices)


PRESETS = ("deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b")


def model_shape(name_or_path: str) -> ModelShape:
    """A preset by name, or the model of a `config.json` (the file or its directory).

    Raises:
        InvalidInput: neither a preset nor a readable file, or a key is missing or not a positive integer.
    """
    if name_or_path in PRESETS:
        text = resources.files("loadgen.planner").joinpath(f"configs/{name_or_path}.json").read_text()
        return shape_from_config(name_or_path, json.loads(text))
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        limit = f"a preset ({', '.join(PRESETS)}) or a readable config.json ({error.strerror})"
        raise InvalidInput("model", name_or_path, limit) from error
    except ValueError as error:
        raise InvalidInput("model", name_or_path, f"valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise InvalidInput("model", name_or_path, "a JSON object")
    return shape_from_config(path.parent.name or path.stem, config)


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read the sizes out of a parsed `config.json` of the DeepSeek V2/V3 or Mixtral family."""
    kind = str(config.get("model_type", ""))
    mixtral = kind == "mixtral"
    if not mixtral and not kind.startswith("deepseek"):
        raise InvalidInput("model.model_type", kind, "mixtral or one that starts with deepseek")
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    experts = _size(config, "num_local_experts" if mixtral else "n_routed_experts")
    layers = _size(config, "num_hidden_layers")
    shape = ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        dense_layers=0 if mixtral else _size(config, "first_k_dense_replace", default=0),
        mtp_layers=0 if mixtral else _size(config, "num_nextn_predict_layers", default=0),
        vocabulary=_size(config, "vocab_size"),
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", default=heads),
        head_dim=_size(config, "head_dim", default=max(hidden // heads, 1)),
        q_lora_rank=_size(config, "q_lora_rank", default=0),
        kv_lora_rank=0 if mixtral else _size(config, "kv_lora_rank"),
        qk_nope_dim=0 if mixtral else _size(config, "qk_nope_head_dim"),
        qk_rope_dim=0 if mixtral else _size(config, "qk_rope_head_dim"),
        v_dim=0 if mixtral else _size(config, "v_head_dim"),
        dense_intermediate=_size(config, "intermediate_size"),
        expert_intermediate=_size(config, "intermediate_size" if mixtral else "moe_intermediate_size"),
        experts=experts,
        shared_experts=0 if mixtral else _size(config, "n_shared_experts", default=0),
        top_k=_size(config, "num_experts_per_tok"),
        groups=_size(config, "n_group", default=1) or 1,
        top_groups=_size(config, "topk_group", default=1) or 1,
        linear_bytes=1 if "quantization_config" in config else 2,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
    if shape.top_k > experts:
        raise InvalidInput("model.num_experts_per_tok", shape.top_k, f"at most the {experts} experts")
    if shape.dense_layers > layers:
        raise InvalidInput("model.first_k_dense_replace", shape.dense_layers, f"at most the {layers} layers")
    return shape


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise InvalidInput(f"model.{key}", "absent", "required")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and default is None):
        raise InvalidInput(f"model.{key}", value, "a positive integer")
    return value
