"""Rotary position embedding with YaRN, pairs interleaved as DeepSeek lays them out: (x0, x1), (x2, x3), ..."""

import math
from dataclasses import dataclass

import torch

from common.model.config import ModelConfig, Yarn


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos, sin: ``[tokens, rope / 2]`` fp32, one angle per pair."""

    cos: torch.Tensor
    sin: torch.Tensor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate the pairs of ``[tokens, rope]`` or ``[tokens, heads, rope]``; in fp32, returned in x's type."""
        cos, sin = (self.cos, self.sin) if x.dim() == 2 else (self.cos[:, None], self.sin[:, None])
        wide = x.float()
        even, odd = wide[..., 0::2], wide[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


class Rotary:
    """Angles of one model; see `inverse_frequencies`."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(config.qk_rope_head_dim, config.rope_theta, config.yarn).to(device)
        yarn = config.yarn
        self._scale = (
            1.0 if yarn is None else _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
        )

    def at(self, positions: torch.Tensor) -> Rotation:
        """The rotation of tokens at `positions` ``[tokens]``."""
        angles = positions.float()[:, None] * self._frequencies
        return Rotation(angles.cos() * self._scale, angles.sin() * self._scale)


def inverse_frequencies(dim: int, theta: float, yarn: Yarn | None) -> torch.Tensor:
    """``[dim / 2]`` fp32.

    With YaRN, pairs that turn more than `beta_fast` times within the original context keep their frequency, those
    that turn fewer than `beta_slow` times are stretched by `factor`, and the ones between are blended linearly.
    """
    base = theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if yarn is None:
        return 1.0 / base
    low = max(math.floor(_pair_turning(yarn.beta_fast, dim, theta, yarn)), 0)
    high = min(math.ceil(_pair_turning(yarn.beta_slow, dim, theta, yarn)), dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return (1.0 / (yarn.factor * base)) * (1 - kept) + (1.0 / base) * kept


def softmax_scale(config: ModelConfig) -> float:
    """``qk_head_dim ** -0.5``, times mscale squared under YaRN: once for the query and once for the key."""
    scale = config.qk_head_dim**-0.5
    if config.yarn is None:
        return scale
    return scale * _mscale(config.yarn.factor, config.yarn.mscale_all_dim) ** 2


def _pair_turning(turns: float, dim: int, theta: float, yarn: Yarn) -> float:
    """Index of the pair that turns so often within the original context."""
    return dim * math.log(yarn.original_context_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
