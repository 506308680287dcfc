"""What an engine needs of a model. Two exist: DeepSeek-V3 (deepseek.py) and the scripted one of the engine's tests."""

from typing import Protocol

import torch

from common.model.batch import AttentionForm, ForwardBatch, Schedule
from common.parallel.waits import Waits


class Model(Protocol):
    """A decoder over latent cache ``[blocks, layers, block_tokens, latent_width]``, MTP layer last.

    Every method that exchanges tokens with other ranks is a generator (common/parallel/waits.py). The number of its
    waits depends on the schedule alone, never on the batch: a rank without tokens calls it with an empty batch.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def latent_layers(self) -> int:
        """Layers of the cache: hidden layers plus the MTP layer when there is one."""
        ...

    @property
    def latent_width(self) -> int: ...

    @property
    def has_mtp(self) -> bool: ...

    def hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
        announce: int | None = None,
    ) -> Waits[torch.Tensor]:
        """Write the batch's latent into `cache` and return ``[tokens, hidden]`` after the final norm.

        `announce` rides on the first exchange of the pass; `announced` then holds every rank's.
        """
        ...

    @property
    def announced(self) -> tuple[int, ...]:
        """Counts that all ranks announced on the latest pass that carried one."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden]`` after the final norm -> ``[rows, vocab]`` fp32."""
        ...

    def mtp_hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        previous_hidden: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
    ) -> Waits[torch.Tensor]:
        """One pass of the MTP layer.

        ``batch.token_ids[i]`` is the token *after* position ``batch.positions[i]`` and ``previous_hidden[i]``
        (``[tokens, hidden]``) the hidden state at that position: the main model's after its final norm, or for a
        second draft the MTP layer's own output. Returns ``[tokens, hidden]`` after the head's norm.
        """
        ...

    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden]`` as `mtp_hidden_states` returns it -> ``[rows, vocab]`` fp32."""
        ...
