"""This rank's routed experts over the tokens that reached them."""

import torch

from kernels.grouped_gemm_ref import grouped
from kernels.silu_mul_ref import silu_mul


def run_experts(rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """``[rows, hidden]`` sorted by local expert -> the same rows through their experts, not yet weighted.

    Args:
        counts: ``[local experts]``.
        gate_up: ``[local experts, 2 * intermediate, hidden]``. down: ``[local experts, hidden, intermediate]``.
    """
    return grouped(silu_mul(grouped(rows, gate_up, counts)), down, counts)
