"""Multi-head latent attention in its two forms (DeepSeek-V2 report, section 2.1), for one rank's heads.

Cached per token and layer is ``[kv_lora + rope]``: the normalised compressed key-value and the one rotated key that
all heads share. ``MULTI_HEAD`` projects cached latent up to keys and values; ``ABSORBED`` moves the up-projections
into query and output, so that all heads read the latent itself.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import linear

from common.model.batch import AttentionForm, ForwardBatch
from common.model.config import ModelConfig
from common.model.rotary import Rotation, softmax_scale
from common.model.weights import AttentionWeights
from kernels.latent_ref import append_latent, gather_latent
from kernels.mla_decode_ref import mla_decode
from kernels.mla_prefill_ref import merge_states, mla_prefill
from kernels.rms_norm_ref import rms_norm

# The published model files build the two latent norms with their default, whatever `rms_norm_eps` says.
LATENT_NORM_EPS = 1e-6
# Cached tokens that are keys and values at one time: for DeepSeek-V3 in bf16, 0.7 GB.
CONTEXT_PART_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Queries:
    """nope: ``[tokens, heads, nope]``, once absorbed ``[tokens, heads, kv_lora]``. rope: ``[tokens, heads, rope]``."""

    nope: torch.Tensor
    rope: torch.Tensor


class LatentAttention:
    """One layer's attention over its view of the cache, ``[blocks, block_tokens, kv_lora + rope]``."""

    def __init__(self, config: ModelConfig, weights: AttentionWeights) -> None:
        self._weights = weights
        self._scale = softmax_scale(config)
        self._kv_lora, self._rope_dim = config.kv_lora_rank, config.qk_rope_head_dim
        self._nope_dim = config.qk_nope_head_dim
        self._heads = weights.k_b.shape[0]

    def project(
        self, x: torch.Tensor, rotation: Rotation, cache: torch.Tensor, slots: torch.Tensor, form: AttentionForm
    ) -> Queries:
        """Queries of `x` ``[tokens, hidden]``; its latent is appended to the cache."""
        w = self._weights
        a = linear(x, w.qkv_a)
        kv = a[:, -(self._kv_lora + self._rope_dim) :]
        latent = torch.cat(
            (
                rms_norm(kv[:, : self._kv_lora], w.kv_a_norm, LATENT_NORM_EPS),
                rotation.apply(kv[:, self._kv_lora :]),
            ),
            dim=-1,
        )
        append_latent(cache, latent, slots)
        if w.q_a_norm is None:
            compressed = x
        else:
            compressed = rms_norm(a[:, : w.q_a_norm.shape[0]], w.q_a_norm, LATENT_NORM_EPS)
        q = linear(compressed, w.q_b).view(x.shape[0], self._heads, self._nope_dim + self._rope_dim)
        nope, rope = q[..., : self._nope_dim], rotation.apply(q[..., self._nope_dim :])
        if form is AttentionForm.ABSORBED:
            nope = torch.bmm(nope.transpose(0, 1), w.k_b).transpose(0, 1)
        return Queries(nope, rope)

    def attend(self, queries: Queries, batch: ForwardBatch, cache: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """``[tokens, hidden]``: this rank's heads' part of the output, to be summed over the tensor group."""
        if form is AttentionForm.ABSORBED:
            values = self._absorbed(queries, batch, cache)
        else:
            values = self._multi_head(queries, batch, cache)
        return linear(values.flatten(1), self._weights.o)

    def _absorbed(self, queries: Queries, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        mixed = mla_decode(
            queries.nope,
            queries.rope,
            cache,
            batch.block_tables,
            batch.query_tokens,
            batch.total_tokens,
            self._scale,
        )
        return torch.bmm(mixed.transpose(0, 1), self._weights.v_b.transpose(1, 2)).transpose(0, 1)

    def _multi_head(self, queries: Queries, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Sequence by sequence and part by part, so that few tokens at a time lie there as keys and values."""
        q = torch.cat((queries.nope, queries.rope), dim=-1)
        out = q.new_empty((q.shape[0], self._heads, self._weights.v_b.shape[1]))
        start = 0
        for query_tokens, total_tokens, table in zip(
            batch.query_tokens.tolist(), batch.total_tokens.tolist(), batch.block_tables, strict=True
        ):
            rows = slice(start, start + query_tokens)
            start = rows.stop
            if query_tokens:
                out[rows] = self._over_context(q[rows], total_tokens, table, cache)
        return out

    def _over_context(
        self, q: torch.Tensor, total_tokens: int, table: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """One sequence's queries ``[queries, heads, nope + rope]``, the last of its `total_tokens` cached tokens."""
        # The last part holds at least the queries themselves; every query sees all of the parts before it.
        last = max(total_tokens - max(CONTEXT_PART_TOKENS, q.shape[0]), 0)
        out, lse = self._over_part(q, gather_latent(cache, table, last, total_tokens), causal=True)
        for first, end in pairwise([*range(0, last, CONTEXT_PART_TOKENS), last]):
            part = self._over_part(q, gather_latent(cache, table, first, end), causal=False)
            out, lse = merge_states(out, lse, *part)
        return out

    def _over_part(self, q: torch.Tensor, latent: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._project_up(latent.to(q.dtype))
        queries, seen = (torch.tensor([len(x)], dtype=torch.int32) for x in (q, latent))
        return mla_prefill(q, keys, values, queries, seen, self._scale, causal=causal)

    def _project_up(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[tokens, kv_lora + rope]`` -> keys ``[tokens, heads, nope + rope]``, values ``[tokens, heads, v]``."""
        w = self._weights
        compressed, rope = latent[:, : self._kv_lora], latent[:, self._kv_lora :]
        nope = linear(compressed, w.k_b.flatten(0, 1)).view(len(latent), self._heads, -1)
        values = linear(compressed, w.v_b.flatten(0, 1)).view(len(latent), self._heads, -1)
        return torch.cat((nope, rope[:, None].expand(-1, self._heads, -1)), dim=-1), values
