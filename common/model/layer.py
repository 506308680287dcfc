"""One decoder layer, written once, as five stages that a schedule interleaves (schedules.py).

    1 project   input norm, query and latent projections, append to the cache, absorb
    2 attend    attention, output projection, residual, post norm, gate
    3 dispatch  send tokens to their experts, shared expert
    4 expert    receive, routed experts, send back
    5 combine   receive, sum, residual

Under tensor parallelism attention sees all tokens of the instance with some of the heads; everything else sees all
channels of this rank's share of the tokens. Stage 1 gathers the shares, stage 2 sums the heads and keeps a share.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch

from common.errors import InternalError
from common.model.attention import LatentAttention, Queries
from common.model.batch import AttentionForm, ForwardBatch
from common.model.config import ModelConfig
from common.model.experts import run_experts
from common.model.gate import choose_experts
from common.model.mlp import mlp
from common.model.rotary import Rotation
from common.model.weights import LayerWeights, MlpWeights, MoeWeights
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.waits import Waits
from kernels.rms_norm_ref import rms_norm

T = TypeVar("T")


@dataclass(slots=True)
class Microbatch:
    """Tokens on their way through the layers, and what one stage leaves for the next.

    Attributes:
        hidden: ``[share, hidden]``, the residual stream of this rank's share of the tokens.
        shares: tokens of every tensor-parallel rank.
        slot: the exchange slot it uses.
        announce: rides on its next dispatch, then is None.
        announced: what the ranks announced on an exchange of this microbatch.
    """

    batch: ForwardBatch
    rotation: Rotation
    hidden: torch.Tensor
    shares: list[int]
    cache: torch.Tensor
    form: AttentionForm
    slot: int = 0
    announce: int | None = None
    announced: tuple[int, ...] = ()
    queries: Queries | None = None
    normed: torch.Tensor | None = None
    expert_ids: torch.Tensor | None = None
    expert_weights: torch.Tensor | None = None
    shared_output: torch.Tensor | None = None


class DecoderLayer:
    """Layer `index` of the cache. Stages are generators that yield right before each receive."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        weights: LayerWeights,
        all_to_all: AllToAll,
        tensor_group: TensorGroup,
    ) -> None:
        self._index, self._config, self._weights = index, config, weights
        self._attention = LatentAttention(config, weights.attention)
        self._all_to_all, self._tensor_group = all_to_all, tensor_group

    @property
    def is_dense(self) -> bool:
        return isinstance(self._weights.mlp, MlpWeights)

    def project(self, m: Microbatch) -> Waits[None]:
        normed = rms_norm(m.hidden, self._weights.input_norm, self._config.rms_norm_eps)
        tokens = yield from self._tensor_group.all_gather(normed, m.shares)
        m.queries = self._attention.project(tokens, m.rotation, m.cache[:, self._index], m.batch.slots, m.form)

    def attend(self, m: Microbatch) -> Waits[None]:
        part = self._attention.attend(_left(m.queries), m.batch, m.cache[:, self._index], m.form)
        m.hidden = m.hidden + (yield from self._tensor_group.reduce_scatter(part, m.shares))
        m.normed = rms_norm(m.hidden, self._weights.post_norm, self._config.rms_norm_eps)
        if isinstance(self._weights.mlp, MoeWeights):
            moe = self._weights.mlp
            m.expert_ids, m.expert_weights = choose_experts(m.normed, moe.gate, moe.bias, self._config.gate)

    def dispatch(self, m: Microbatch, *, shared_first: bool) -> None:
        if shared_first:
            self._shared_expert(m)
        self._all_to_all.dispatch_send(
            _left(m.normed), _left(m.expert_ids), _left(m.expert_weights), slot=m.slot, announce=m.announce
        )
        if not shared_first:
            self._shared_expert(m)

    def expert(self, m: Microbatch) -> Waits[None]:
        yield
        arrived = self._all_to_all.dispatch_recv(slot=m.slot)
        if m.announce is not None:
            m.announce, m.announced = None, arrived.announced
        moe = self._moe
        rows = run_experts(arrived.rows, arrived.expert_counts, moe.gate_up, moe.down)
        self._all_to_all.combine_send(rows, slot=m.slot)

    def combine(self, m: Microbatch) -> Waits[None]:
        yield
        routed = self._all_to_all.combine_recv(slot=m.slot)
        m.hidden = m.hidden + (routed if m.shared_output is None else routed + m.shared_output)

    def whole(self, m: Microbatch) -> Waits[None]:
        """A dense layer in one go: it has no exchange to hide."""
        if not isinstance(self._weights.mlp, MlpWeights):
            raise InternalError(f"layer {self._index} has experts and runs in stages")
        yield from self.project(m)
        yield from self.attend(m)
        m.hidden = m.hidden + mlp(_left(m.normed), self._weights.mlp)

    def _shared_expert(self, m: Microbatch) -> None:
        shared = self._moe.shared
        m.shared_output = None if shared is None else mlp(_left(m.normed), shared)

    @property
    def _moe(self) -> MoeWeights:
        if not isinstance(self._weights.mlp, MoeWeights):
            raise InternalError(f"layer {self._index} is dense and has no experts")
        return self._weights.mlp


def _left(value: T | None) -> T:
    """What the stage before left in the microbatch."""
    if value is None:
        raise InternalError("stages of a layer ran out of order")
    return value
