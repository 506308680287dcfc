"""The multi-token prediction layer (DeepSeek-V3 report, section 2.2): one more layer for one more token."""

import torch
from torch.nn.functional import linear

from common.model.config import ModelConfig
from common.model.layer import DecoderLayer
from common.model.vocabulary import embed, project_to_vocabulary
from common.model.weights import MtpWeights
from kernels.rms_norm_ref import rms_norm


class MtpLayer:
    """`block` is its decoder layer, which runs under the same schedules as the model's."""

    def __init__(self, config: ModelConfig, weights: MtpWeights, block: DecoderLayer) -> None:
        self.block = block
        self._weights, self._eps = weights, config.rms_norm_eps

    def join(self, next_token_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The block's input ``[tokens, hidden]`` from each position's hidden state and the token after it."""
        w = self._weights
        embedded = rms_norm(embed(next_token_ids, w.embedding), w.embedding_norm, self._eps)
        return linear(torch.cat((embedded, rms_norm(hidden, w.hidden_norm, self._eps)), dim=-1), w.eh)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[tokens, hidden]`` as the block returns it -> after the head's norm: for the head, and for a next pass."""
        return rms_norm(hidden, self._weights.head_norm, self._eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden]`` after the head's norm -> ``[rows, vocab]`` fp32, two tokens after each position."""
        return project_to_vocabulary(hidden, self._weights.head)
