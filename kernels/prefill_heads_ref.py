"""Keys and queries of multi-head prefill from the up-projected latent, reference."""

import torch
from torch import Tensor

from kernels.latent_ref import rotate_interleaved


def assemble_heads(q: Tensor, kv: Tensor, k_pe: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Rotate q's positional part in place and build keys.

    Args:
        q: [tokens, heads, nope + P], changed in place.
        kv: [tokens, heads, nope + V], the up-projected latent: keys without position, then values.
        k_pe: [tokens, P], rotated, shared by all heads.
        cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].

    Returns:
        k [tokens, heads, nope + P]; values are read in place as `kv[..., nope:]`.
    """
    nope = q.shape[2] - k_pe.shape[1]
    q[..., nope:] = rotate_interleaved(q[..., nope:], cos[positions][:, None], sin[positions][:, None])
    return torch.cat((kv[..., :nope], k_pe[:, None].expand(-1, q.shape[1], -1)), dim=-1)
