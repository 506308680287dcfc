"""DeepSeek-V3's network in plain torch, for training and for measuring: arXiv:2412.19437, sections 2.1 and 2.2.

Parameters carry the names of the published checkpoint, except that the routed experts of a layer are stacked. All
experts compute every token and the gate's weights mask them: at 16 experts of 128 channels that is one dense product of
2,048 channels, faster on a GPU than sorting tokens, and it is the same function.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu

from models.train.fp8 import round_trip


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of the published `config.json` that fix the function; names are Hugging Face's."""

    vocab_size: int = 2048
    hidden_size: int = 384
    intermediate_size: int = 1024
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    n_shared_experts: int = 1
    n_routed_experts: int = 16
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: int = 1
    num_nextn_predict_layers: int = 1
    q_lora_rank: int = 256
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_factor: float = 4.0
    rope_original_max_position: int = 1024
    max_position_embeddings: int = 4096

    def config(self) -> dict[str, Any]:
        """`config.json` as DeepSeek publishes it."""
        fields = asdict(self)
        factor, original = fields.pop("rope_factor"), fields.pop("rope_original_max_position")
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "ep_size": 1,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "model_type": "deepseek_v3",
            "moe_layer_freq": 1,
            "norm_topk_prob": True,
            "num_key_value_heads": self.num_attention_heads,
            "quantization_config": {
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
            },
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": factor,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": original,
                "type": "yarn",
            },
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_method": "noaux_tc",
            "torch_dtype": "bfloat16",
            "use_cache": True,
            **fields,
        }


class Linear(nn.Module):
    """A bias-free projection `[out, in]`. With `fp8` set it computes with the weight as the checkpoint will hold it."""

    fp8 = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, round_trip(self.weight) if self.fp8 else self.weight)


class RMSNorm(nn.RMSNorm):
    """torch's, with the weight in the input's type: under autocast only equal types reach the fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def rotary_frequencies(shape: Shape) -> Tensor:
    """YaRN's angular frequencies `[rope/2]` (arXiv:2309.00071, eq. 23, ramp between beta 32 and 1)."""
    dim, base, original = shape.qk_rope_head_dim, shape.rope_theta, shape.rope_original_max_position
    plain = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def turns(beta: float) -> float:
        return dim * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(turns(32.0)), 0), min(math.ceil(turns(1.0)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (plain / shape.rope_factor * ramp + plain * (1 - ramp)).float()


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate interleaved pairs of `x` `[batch, tokens, heads, rope]` by `angles` `[tokens, rope/2]`."""
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Multi-head latent attention, up-projected to full heads (eqs. 1-11)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads = shape.num_attention_heads
        self.q_a_proj = Linear(shape.hidden_size, shape.q_lora_rank)
        self.q_a_layernorm = RMSNorm(shape.q_lora_rank, eps=shape.rms_norm_eps)
        self.q_b_proj = Linear(shape.q_lora_rank, heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim))
        self.kv_a_proj_with_mqa = Linear(shape.hidden_size, shape.kv_lora_rank + shape.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank, eps=shape.rms_norm_eps)
        self.kv_b_proj = Linear(shape.kv_lora_rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim))
        self.o_proj = Linear(heads * shape.v_head_dim, shape.hidden_size)
        mscale = 0.1 * math.log(shape.rope_factor) + 1.0
        self.scale = mscale * mscale / math.sqrt(shape.qk_nope_head_dim + shape.qk_rope_head_dim)

    def forward(self, x: Tensor, angles: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """`x` `[batch, new, hidden]`, `past` latent `[batch, old, 576]` -> output, latent of old + new tokens."""
        shape = self.shape
        batch, new, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, new, shape.num_attention_heads, -1)
        q_nope, q_rope = q.split((shape.qk_nope_head_dim, shape.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((shape.kv_lora_rank, shape.qk_rope_head_dim), dim=-1)
        latent = torch.cat((self.kv_a_layernorm(latent), rotate(k_rope.unsqueeze(2), angles).squeeze(2)), dim=-1)
        if past is not None:
            latent = torch.cat((past, latent), dim=1)
        kv = self.kv_b_proj(latent[..., : shape.kv_lora_rank])
        k_nope, v = kv.view(batch, latent.shape[1], shape.num_attention_heads, -1).split(
            (shape.qk_nope_head_dim, shape.v_head_dim), dim=-1
        )
        k_rope = latent[..., None, shape.kv_lora_rank :].expand(-1, -1, shape.num_attention_heads, -1)
        q = torch.cat((q_nope, rotate(q_rope, angles)), dim=-1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope), dim=-1).transpose(1, 2)
        # Flash attention wants one width for q, k and v: v is padded with zeros that the slice drops again.
        v = pad(v, (0, k.shape[-1] - v.shape[-1])).transpose(1, 2)
        # Callers extend a cache by one token at a time, which sees every cached token: no mask is needed then.
        out = scaled_dot_product_attention(q, k, v, is_causal=past is None, scale=self.scale)
        return self.o_proj(out[..., : shape.v_head_dim].transpose(1, 2).flatten(2)), latent


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate)
        self.up_proj = Linear(hidden, intermediate)
        self.down_proj = Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    """Sigmoid routing limited to the best groups, balanced by a bias that only chooses (eqs. 12-16, section 2.1.2)."""

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.n_routed_experts, shape.hidden_size).normal_(std=0.02))
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))
        self.register_buffer("load", torch.zeros(shape.n_routed_experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[tokens, hidden]` -> weights `[tokens, experts]`, zero where an expert was not chosen."""
        shape = self.shape
        with torch.autocast(x.device.type, enabled=False):
            scores = linear(x.float(), self.weight.float()).sigmoid()
            biased = scores.detach() + self.e_score_correction_bias
            groups = biased.unflatten(-1, (shape.n_group, -1))
            best = groups.topk(2, dim=-1).values.sum(-1).topk(shape.topk_group, dim=-1).indices
            kept = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter(-1, best, value=True)
            chosen = (
                groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2).topk(shape.num_experts_per_tok).indices
            )
            mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
            if self.training:
                self.load += mask.sum(0)
            weights = scores * mask
            return weights / (weights.sum(-1, keepdim=True) + 1e-20) * shape.routed_scaling_factor

    @torch.no_grad()
    def balance(self, step_size: float) -> None:
        """Move each expert's bias by `step_size` towards an even load, then forget the load."""
        self.e_score_correction_bias += step_size * (self.load.mean() - self.load).sign()
        self.load.zero_()


class MoE(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = Gate(shape)
        self.experts = MLP(shape.hidden_size, shape.n_routed_experts * shape.moe_intermediate_size)
        self.shared_experts = MLP(shape.hidden_size, shape.n_shared_experts * shape.moe_intermediate_size)
        self.expert_channels = shape.moe_intermediate_size

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        experts = self.experts
        inner = silu(experts.gate_proj(x)) * experts.up_proj(x)
        inner = inner.unflatten(-1, (-1, self.expert_channels)) * weights.to(inner.dtype).unsqueeze(-1)
        return experts.down_proj(inner.flatten(-2)) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, shape: Shape, dense: bool, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size) if dense else MoE(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, angles: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        attended, latent = self.self_attn(self.input_layernorm(x), angles, past)
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x))), latent


class NextTokenLayer(Layer):
    """The multi-token-prediction module (eqs. 21-23), over the main model's normed hidden state and the next token."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__(shape, dense=False, dropout=dropout)
        self.enorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.hnorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        # Published in bf16, not FP8.
        self.eh_proj = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.shared_head_norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Network(nn.Module):
    """Main model and its MTP layer; embedding and head are shared between them, as in DeepSeek-V3."""

    frequencies: Tensor

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(
            Layer(shape, dense=i < shape.first_k_dense_replace, dropout=dropout) for i in range(shape.num_hidden_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        self.mtp = NextTokenLayer(shape, dropout)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("frequencies", rotary_frequencies(shape), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * (shape.num_hidden_layers + 1)))

    def gates(self) -> list[Gate]:
        return [module for module in self.modules() if isinstance(module, Gate)]

    def set_fp8(self, on: bool) -> None:
        """From now on compute with weights rounded as the checkpoint rounds them, or not."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.fp8 = on

    def angles(self, start: int, count: int) -> Tensor:
        """Rotation angles `[count, rope/2]` of the positions from `start`."""
        positions = torch.arange(start, start + count, device=self.frequencies.device, dtype=torch.float32)
        return positions[:, None] * self.frequencies

    def hidden(self, tokens: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        """Token ids `[batch, new]` -> hidden states after the final norm `[batch, new, hidden]`; extends `cache`.

        A cache that is not empty takes one token at a time.
        """
        start = cache[0].shape[1] if cache else 0
        angles = self.angles(start, tokens.shape[1])
        x = self.dropout(self.embed_tokens(tokens))
        latents = list[Tensor]()
        for index, layer in enumerate(self.layers):
            x, latent = layer(x, angles, cache[index] if cache else None)
            latents.append(latent)
        if cache is not None:
            cache[:] = latents
        return self.norm(x)

    def draft_hidden(self, hidden: Tensor, next_tokens: Tensor) -> Tensor:
        """The MTP layer over `hidden` `[batch, n, hidden]` of positions i and the tokens `[batch, n]` of i + 1."""
        mtp = self.mtp
        joined = torch.cat((mtp.enorm(self.embed_tokens(next_tokens)), mtp.hnorm(hidden)), dim=-1)
        x, _ = mtp(mtp.eh_proj(joined), self.angles(0, hidden.shape[1]), None)
        return mtp.shared_head_norm(x)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Ids `[batch, n]` -> logits of tokens i+1 `[batch, n, vocab]`, of tokens i+2 `[batch, n-1, vocab]`."""
        hidden = self.hidden(tokens)
        draft = self.draft_hidden(hidden[:, :-1], tokens[:, 1:])
        return self.lm_head(hidden), self.lm_head(draft)
