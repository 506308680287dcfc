"""The SwiGLU feed-forward of dense layers and of the shared expert."""

import torch
from torch.nn.functional import linear

from common.model.weights import MlpWeights
from kernels.silu_mul_ref import silu_mul


def mlp(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """``[tokens, hidden]`` -> ``[tokens, hidden]``."""
    return linear(silu_mul(linear(x, weights.gate_up)), weights.down)
