"""SwiGLU's activation, reference: `silu(gate) * up`, in fp32."""

import torch
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """`x` [rows, 2 I] holds gate then up: [rows, I] in x's type."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    gate, up = wide.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)
