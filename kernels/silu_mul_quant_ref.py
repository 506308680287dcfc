"""SwiGLU's activation and quantisation over the live rows of each expert, reference."""

import torch
from torch import Tensor

from kernels.fp8_block_ref import quantize_per_token


def silu_mul_quant(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise `silu(gate) * up` per row and 128 channels.

    Args:
        x: [experts, max_rows, 2 I], gate then up; row r of expert e lives if r < counts[e].
        counts: int32 [experts]; None means that all rows live.

    Returns:
        e4m3 [experts, max_rows, I] and fp32 scale [experts, max_rows, I/128]; dead rows are zero here,
        undefined on a GPU.
    """
    experts, rows, _ = x.shape
    gate, up = x.float().chunk(2, dim=-1)
    q, scale = quantize_per_token((torch.nn.functional.silu(gate) * up).flatten(0, 1))
    if counts is None:
        return q.view(experts, rows, -1), scale.view(experts, rows, -1)
    live = (torch.arange(rows, device=x.device)[None] < counts[:, None])[..., None]
    q = torch.where(live, q.view(experts, rows, -1).float(), 0.0).to(q.dtype)
    return q, torch.where(live, scale.view(experts, rows, -1), 0.0)
