"""One rank's weights: its heads, its experts, and what every rank holds. Linear weights are ``[out, in]``."""

from dataclasses import dataclass
from pathlib import Path

import torch

from common.errors import ConfigError
from common.model.checkpoint import Checkpoint
from common.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Latent attention's weights for this rank's heads.

    Attributes:
        qkv_a: ``[q_lora + kv_lora + rope, hidden]``; without query compression ``[kv_lora + rope, hidden]``.
        q_a_norm: ``[q_lora]``, or None without query compression.
        q_b: ``[heads * (nope + rope), q_lora]``, or from ``hidden`` without query compression.
        kv_a_norm: ``[kv_lora]``.
        k_b: ``[heads, nope, kv_lora]``. v_b: ``[heads, v, kv_lora]``.
        o: ``[hidden, heads * v]``.
    """

    qkv_a: torch.Tensor
    q_a_norm: torch.Tensor | None
    q_b: torch.Tensor
    kv_a_norm: torch.Tensor
    k_b: torch.Tensor
    v_b: torch.Tensor
    o: torch.Tensor


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """gate_up: ``[2 * intermediate, hidden]``, gate first. down: ``[hidden, intermediate]``."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """gate: ``[experts, hidden]`` fp32. bias: ``[experts]`` fp32 or None.

    gate_up: ``[local experts, 2 * moe_intermediate, hidden]``. down: ``[local experts, hidden, moe_intermediate]``.
    """

    gate: torch.Tensor
    bias: torch.Tensor | None
    shared: MlpWeights | None
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor
    attention: AttentionWeights
    post_norm: torch.Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """embedding, head: ``[vocab, hidden]``, the model's own tensors where the copies are equal.

    eh: ``[hidden, 2 * hidden]``, embedding first.
    """

    embedding: torch.Tensor
    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    eh: torch.Tensor
    layer: LayerWeights
    head_norm: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    mtp: MtpWeights | None


def load_weights(
    directory: Path,
    config: ModelConfig,
    *,
    heads: range,
    experts: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> ModelWeights:
    """Read what one rank owns.

    Args:
        heads: this rank's attention heads.
        experts: the experts it holds, in the order of its physical slots.

    Raises:
        CheckpointError: names file and tensor.
    """
    with Checkpoint(directory) as checkpoint:
        return _Reader(checkpoint, config, heads, experts, dtype, device).model()


def heads_of(config: ModelConfig, tp_rank: int, tp: int) -> range:
    """The attention heads of one tensor-parallel rank.

    Raises:
        ConfigError: `tp` does not divide the heads.
    """
    if config.heads % tp:
        raise ConfigError(f"tp = {tp}: must divide num_attention_heads = {config.heads}")
    per_rank = config.heads // tp
    return range(tp_rank * per_rank, (tp_rank + 1) * per_rank)


class _Reader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        heads: range,
        experts: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.checkpoint, self.config = checkpoint, config
        self.heads, self.experts = heads, experts
        self.dtype, self.device = dtype, device

    def model(self) -> ModelWeights:
        c = self.config
        embedding = self._read("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
        head = embedding if c.tied_embeddings else self._read("lm_head.weight", c.vocab_size, c.hidden_size)
        return ModelWeights(
            embedding=embedding,
            layers=tuple(self._layer(i) for i in range(c.layers)),
            norm=self._read("model.norm.weight", c.hidden_size),
            head=head,
            mtp=self._mtp(embedding, head) if c.has_mtp else None,
        )

    def _mtp(self, embedding: torch.Tensor, head: torch.Tensor) -> MtpWeights:
        c, prefix = self.config, f"model.layers.{self.config.layers}"
        return MtpWeights(
            embedding=self._shared(f"{prefix}.embed_tokens.weight", embedding),
            embedding_norm=self._read(f"{prefix}.enorm.weight", c.hidden_size),
            hidden_norm=self._read(f"{prefix}.hnorm.weight", c.hidden_size),
            eh=self._read(f"{prefix}.eh_proj.weight", c.hidden_size, 2 * c.hidden_size),
            layer=self._layer(c.layers),
            head_norm=self._read(f"{prefix}.shared_head.norm.weight", c.hidden_size),
            head=self._shared(f"{prefix}.shared_head.head.weight", head),
        )

    def _shared(self, name: str, main: torch.Tensor) -> torch.Tensor:
        """The MTP layer's copy of `main`; published checkpoints store it twice, others leave it out."""
        if name not in self.checkpoint:
            return main
        copy = self._read(name, *main.shape)
        return main if torch.equal(copy, main) else copy

    def _layer(self, index: int) -> LayerWeights:
        c, prefix = self.config, f"model.layers.{index}"
        dense = index < c.dense_layers
        return LayerWeights(
            input_norm=self._read(f"{prefix}.input_layernorm.weight", c.hidden_size),
            attention=self._attention(f"{prefix}.self_attn"),
            post_norm=self._read(f"{prefix}.post_attention_layernorm.weight", c.hidden_size),
            mlp=self._mlp(f"{prefix}.mlp", c.intermediate_size) if dense else self._moe(f"{prefix}.mlp"),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        c, first, last = self.config, self.heads.start, self.heads.stop
        kv_a = self._read(f"{prefix}.kv_a_proj_with_mqa.weight", c.latent_width, c.hidden_size)
        query_rows = range(first * c.qk_head_dim, last * c.qk_head_dim)
        if c.q_lora_rank is None:
            qkv_a, q_a_norm = kv_a, None
            q_b = self._read(f"{prefix}.q_proj.weight", c.heads * c.qk_head_dim, c.hidden_size, rows=query_rows)
        else:
            q_a = self._read(f"{prefix}.q_a_proj.weight", c.q_lora_rank, c.hidden_size)
            qkv_a = torch.cat((q_a, kv_a))
            q_a_norm = self._read(f"{prefix}.q_a_layernorm.weight", c.q_lora_rank)
            q_b = self._read(f"{prefix}.q_b_proj.weight", c.heads * c.qk_head_dim, c.q_lora_rank, rows=query_rows)
        up = c.qk_nope_head_dim + c.v_head_dim
        kv_b = self._read(
            f"{prefix}.kv_b_proj.weight", c.heads * up, c.kv_lora_rank, rows=range(first * up, last * up)
        ).view(len(self.heads), up, c.kv_lora_rank)
        return AttentionWeights(
            qkv_a=qkv_a,
            q_a_norm=q_a_norm,
            q_b=q_b,
            kv_a_norm=self._read(f"{prefix}.kv_a_layernorm.weight", c.kv_lora_rank),
            k_b=kv_b[:, : c.qk_nope_head_dim].contiguous(),
            v_b=kv_b[:, c.qk_nope_head_dim :].contiguous(),
            o=self._read(
                f"{prefix}.o_proj.weight",
                c.hidden_size,
                c.heads * c.v_head_dim,
                columns=range(first * c.v_head_dim, last * c.v_head_dim),
            ),
        )

    def _mlp(self, prefix: str, intermediate: int) -> MlpWeights:
        hidden = self.config.hidden_size
        gate_up = self._empty(2 * intermediate, hidden)
        gate_up[:intermediate] = self._read(f"{prefix}.gate_proj.weight", intermediate, hidden)
        gate_up[intermediate:] = self._read(f"{prefix}.up_proj.weight", intermediate, hidden)
        return MlpWeights(gate_up, self._read(f"{prefix}.down_proj.weight", hidden, intermediate))

    def _moe(self, prefix: str) -> MoeWeights:
        c = self.config
        hidden, intermediate = c.hidden_size, c.moe_intermediate_size
        gate_up = self._empty(len(self.experts), 2 * intermediate, hidden)
        down = self._empty(len(self.experts), hidden, intermediate)
        for slot, expert in enumerate(self.experts):
            one = self._mlp(f"{prefix}.experts.{expert}", intermediate)
            gate_up[slot], down[slot] = one.gate_up, one.down
        bias_name = f"{prefix}.gate.e_score_correction_bias"
        return MoeWeights(
            gate=self._read(f"{prefix}.gate.weight", c.gate.experts, hidden, dtype=torch.float32),
            bias=self._read(bias_name, c.gate.experts, dtype=torch.float32) if c.gate.correction_bias else None,
            shared=self._mlp(f"{prefix}.shared_experts", c.shared_experts * intermediate) if c.shared_experts else None,
            gate_up=gate_up,
            down=down,
        )

    def _read(
        self,
        name: str,
        *shape: int,
        rows: range | None = None,
        columns: range | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        part = self.checkpoint.read(name, tuple(shape), rows=rows, columns=columns)
        return part.to(device=self.device, dtype=dtype or self.dtype).contiguous()

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
