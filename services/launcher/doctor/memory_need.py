"""What one rank holds in memory, from config.json and the cluster's file. Own arithmetic, no weights are read.

Routed experts are split over `ep`; what attention, shared experts, gates and embeddings take is held by every rank
(attention heads over `tp`). FP8 weights carry one fp32 scale for each 128 x 128 block, which is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.config.cluster import ClusterConfig
from common.config.place import Role, parallel_of

RESERVED_BYTES = 8 << 30  # CUDA context, communicators, workspaces, graphs
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of one rank."""

    experts: int
    others: int
    latent: int

    @property
    def total(self) -> int:
        return self.experts + self.others + self.latent


def memory_need(config: ClusterConfig, role: Role, model: Mapping[str, Any]) -> MemoryNeed | None:
    """None: config.json lacks what the arithmetic needs, as one of another architecture does."""
    names = (
        "num_hidden_layers", "hidden_size", "moe_intermediate_size", "intermediate_size", "n_routed_experts",
        "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "vocab_size",
    )  # fmt: skip
    if not all(isinstance(model.get(name), int) for name in names):
        return None
    parallel = parallel_of(config, role)
    blocks = config.prefill.blocks if role == "prefill" else config.decode.blocks
    element = _ELEMENT_BYTES[config.model.dtype]
    on_gpu = config.model.device == "cuda"
    weight = 1 if model.get("quantization_config") and on_gpu else element  # dequantised on a CPU
    layers = model["num_hidden_layers"] + int(model.get("num_nextn_predict_layers") or 0)
    dense = min(int(model.get("first_k_dense_replace") or 0), layers)
    hidden, expert = model["hidden_size"], 3 * model["hidden_size"] * model["moe_intermediate_size"]
    latent_width = model["kv_lora_rank"] + model["qk_rope_head_dim"]

    experts = (layers - dense) * model["n_routed_experts"] * expert * weight // parallel.ep
    shared = (layers - dense) * int(model.get("n_shared_experts") or 0) * expert
    mlp = dense * 3 * hidden * model["intermediate_size"]
    attention = layers * _attention(model) // parallel.tp
    embeddings = 2 * model["vocab_size"] * hidden * element
    return MemoryNeed(
        experts=experts,
        others=(shared + mlp + attention) * weight + embeddings,
        latent=blocks * config.block_tokens * layers * latent_width * element,
    )


def _attention(model: Mapping[str, Any]) -> int:
    """Parameters of one layer's latent attention."""
    hidden, heads, latent = model["hidden_size"], model["num_attention_heads"], model["kv_lora_rank"]
    key = model["qk_nope_head_dim"] + model["qk_rope_head_dim"]
    query_rank = model.get("q_lora_rank")
    query = query_rank * (hidden + heads * key) if isinstance(query_rank, int) else hidden * heads * key
    compress = hidden * (latent + model["qk_rope_head_dim"])
    expand = latent * heads * (model["qk_nope_head_dim"] + model["v_head_dim"])
    return int(query + compress + expand + heads * model["v_head_dim"] * hidden)
