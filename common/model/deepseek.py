"""DeepSeek-V3 as engines see it, see `common.model.base.Model`."""

from collections.abc import Sequence

import torch

from common.errors import InternalError
from common.model.batch import AttentionForm, ForwardBatch, Schedule
from common.model.config import ModelConfig
from common.model.layer import DecoderLayer, Microbatch
from common.model.microbatch import shares_of, split_batch
from common.model.mtp import MtpLayer
from common.model.rotary import Rotary
from common.model.schedules import run_expert_layers
from common.model.vocabulary import embed, project_to_vocabulary
from common.model.weights import ModelWeights
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.waits import Waits
from kernels.rms_norm_ref import rms_norm


class DeepSeek:
    """One rank's model: its heads, its experts, everything else whole."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, all_to_all: AllToAll, tensor_group: TensorGroup
    ) -> None:
        self.config = config
        self._weights = weights
        self._tensor_group = tensor_group
        self._rotary = Rotary(config, weights.embedding.device)
        layers = [DecoderLayer(i, config, w, all_to_all, tensor_group) for i, w in enumerate(weights.layers)]
        self._dense_layers = [layer for layer in layers if layer.is_dense]
        self._expert_layers = [layer for layer in layers if not layer.is_dense]
        self._mtp: MtpLayer | None = None
        if weights.mtp is not None:
            block = DecoderLayer(config.layers, config, weights.mtp.layer, all_to_all, tensor_group)
            self._mtp = MtpLayer(config, weights.mtp, block)
        self._announced: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def latent_layers(self) -> int:
        return self.config.latent_layers

    @property
    def latent_width(self) -> int:
        return self.config.latent_width

    @property
    def has_mtp(self) -> bool:
        return self._mtp is not None

    @property
    def announced(self) -> tuple[int, ...]:
        return self._announced

    def hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
        announce: int | None = None,
    ) -> Waits[torch.Tensor]:
        whole = self._microbatch(batch, cache, form, self._share(embed(batch.token_ids, self._weights.embedding)))
        for layer in self._dense_layers:
            yield from layer.whole(whole)
        hidden = yield from self._through_experts(self._expert_layers, whole, schedule, announce)
        return rms_norm(hidden, self._weights.norm, self.config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return project_to_vocabulary(hidden, self._weights.head)

    def mtp_hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        previous_hidden: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
    ) -> Waits[torch.Tensor]:
        mtp = self._mtp_layer
        joined = mtp.join(self._share(batch.token_ids), self._share(previous_hidden))
        whole = self._microbatch(batch, cache, form, joined)
        return mtp.normed((yield from self._through_experts([mtp.block], whole, schedule, None)))

    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._mtp_layer.logits(hidden)

    def _through_experts(
        self, layers: Sequence[DecoderLayer], whole: Microbatch, schedule: Schedule, announce: int | None
    ) -> Waits[torch.Tensor]:
        """All tokens' residual stream ``[tokens, hidden]`` after `layers`, on every tensor-parallel rank."""
        gather = self._tensor_group.all_gather
        if schedule is Schedule.DUAL_MICROBATCH:
            everything = yield from gather(whole.hidden, whole.shares)
            halves = split_batch(whole.batch)
            hidden = torch.split(everything, [half.tokens for half in halves])
            microbatches = [
                self._microbatch(half, whole.cache, whole.form, self._share(part), slot)
                for slot, (half, part) in enumerate(zip(halves, hidden, strict=True))
            ]
        else:
            microbatches = [whole]
        microbatches[0].announce = announce
        yield from run_expert_layers(layers, microbatches, schedule)
        if announce is not None:
            self._announced = microbatches[0].announced
        parts = []
        for m in microbatches:
            parts.append((yield from gather(m.hidden, m.shares)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _microbatch(
        self, batch: ForwardBatch, cache: torch.Tensor, form: AttentionForm, hidden: torch.Tensor, slot: int = 0
    ) -> Microbatch:
        return Microbatch(
            batch=batch,
            rotation=self._rotary.at(batch.positions),
            hidden=hidden,
            shares=shares_of(batch.tokens, self._tensor_group.ranks),
            cache=cache,
            form=form,
            slot=slot,
        )

    def _share(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's share of rows that every tensor-parallel rank has."""
        group = self._tensor_group
        return x if group.ranks == 1 else torch.split(x, shares_of(x.shape[0], group.ranks))[group.rank]

    @property
    def _mtp_layer(self) -> MtpLayer:
        if self._mtp is None:
            raise InternalError("this model has no MTP layer")
        return self._mtp
