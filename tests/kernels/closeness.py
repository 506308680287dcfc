"""Tolerances, one per number format, and what the tests of the kernels share."""

import torch
from torch import Tensor

from kernels.fp8_block_ref import quantize_block, quantize_per_token
from kernels.tiles import scale_buffer

# Relative Frobenius error against the reference computed in fp32 from the same inputs.
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
# FP8 values: on a GPU a different order of sums may move a value to its neighbour; the CPU interpreter also rounds some
# values wrongly where a carry reaches the exponent and flushes the smallest.
FP8_TOLERANCE = {"cuda": 1e-2, "cpu": 0.1}


def relative_error(out: Tensor, reference: Tensor) -> float:
    a, b = out.double(), reference.double()
    assert bool(torch.isfinite(a).all())
    return float((a - b).norm() / b.norm().clamp_min(1e-30)) if b.numel() else 0.0


def assert_close(out: Tensor, reference: Tensor, kind: torch.dtype | None = None) -> None:
    assert out.shape == reference.shape
    assert relative_error(out, reference) <= TOLERANCE[kind or out.dtype]


def assert_quantised(out: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor], *, exact: bool) -> None:
    """FP8 values and scales; `exact` holds on a GPU where the values before quantisation are equal bit for bit."""
    q, scale = out
    reference_q, reference_scale = reference
    assert q.shape == reference_q.shape
    if exact and q.is_cuda:
        assert torch.equal(q.view(torch.uint8), reference_q.view(torch.uint8))
        assert torch.equal(scale, reference_scale)
        return
    assert relative_error(q.float(), reference_q.float()) <= FP8_TOLERANCE[q.device.type]
    assert relative_error(scale, reference_scale) <= (FP8_TOLERANCE[q.device.type] if not exact else 1e-2)


def quantised(rows: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random activations [rows, k] with scales where the matrix kernels want them."""
    q, scale = quantize_per_token(torch.randn(rows, k, device=device))
    laid_out = scale_buffer(rows, scale.shape[1], device)
    laid_out.copy_(scale)
    return q, laid_out


def weight(*shape: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random block-scaled weight [.., N, K]."""
    *lead, n, k = shape
    if not lead:
        return quantize_block(torch.randn(n, k, device=device))
    parts = [weight(*shape[1:], device=device) for _ in range(lead[0])]
    return torch.stack([w for w, _ in parts]), torch.stack([s for _, s in parts])


def poisoned(like: Tensor) -> Tensor:
    """A tensor of NaN: what a kernel must not read or must overwrite."""
    return torch.full_like(like, float("nan"))
