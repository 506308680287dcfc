"""RMSNorm, reference: `weight * cast(x / rms(x))`, the mean of squares in fp32 (DeepSeek-V3 `DeepseekV3RMSNorm`)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise each row of `x` [tokens, hidden]; the row is cast back to its own type before the weight [hidden]."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * normed.to(x.dtype)).to(x.dtype)
