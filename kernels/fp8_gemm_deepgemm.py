"""FP8 matrix products by DeepGEMM, dense and per expert: many rows, scales promoted in fp32 per 128 of K."""

from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from kernels import check
from kernels.fp8_gemm_splitk import check_operands
from kernels.libraries import library

MASKED_ROWS = 64  # DeepGEMM's smallest row tile; masked layouts pad an expert's rows to it
CONTIGUOUS_ALIGN = 128


@lru_cache(maxsize=1)
def _deep_gemm() -> ModuleType:
    module = library("deep_gemm", "fp8_gemm")
    module.set_pdl(True)
    return module


def fp8_gemm_deepgemm(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, *, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """`fp8_gemm` through DeepGEMM; bf16 output only.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: DeepGEMM is not installed.
    """
    check_operands(x, x_scale, w, w_scale)
    out = x.new_empty((x.shape[0], w.shape[0]), dtype=out_dtype)
    check.dtype("out_dtype", out, torch.bfloat16)
    if x.shape[0]:
        _deep_gemm().fp8_gemm_nt((x, x_scale), (w, w_scale), out)
    return out


def grouped_gemm_masked(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, counts: Tensor, mean_rows: int
) -> Tensor:
    """Per-expert product in padded form.

    Args:
        x: e4m3 [experts, max_rows, K]; x_scale: fp32 [experts, max_rows, K/128], rows contiguous.
        w: e4m3 [experts, N, K]; w_scale: fp32 [experts, N/128, K/128]; counts: int32 [experts] on the device.
        mean_rows: about what an expert gets, a hint for the tile choice; any value gives right results.

    Returns:
        bf16 [experts, max_rows, N]; rows past an expert's count are not written.
    """
    check.shape("x", x, (w.shape[0], None, w.shape[2]))
    check.shape("counts", counts, (w.shape[0],))
    check.dtype("counts", counts, torch.int32)
    out = x.new_empty((x.shape[0], x.shape[1], w.shape[1]), dtype=torch.bfloat16)
    if out.numel():
        masked = _deep_gemm().fp8_m_grouped_gemm_nt_masked
        masked((x, x_scale), (w, w_scale), out, counts, mean_rows)
    return out


def grouped_gemm_contiguous(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, experts_of_rows: Tensor) -> Tensor:
    """Per-expert product over rows sorted by expert, every expert's rows beginning at a multiple of 128.

    Args:
        x: e4m3 [M, K]; x_scale as `tiles.scale_buffer`; experts_of_rows: int32 [M], -1 for padding.

    Returns:
        bf16 [M, N].
    """
    check.shape("experts_of_rows", experts_of_rows, (x.shape[0],))
    check.dtype("experts_of_rows", experts_of_rows, torch.int32)
    out = x.new_empty((x.shape[0], w.shape[1]), dtype=torch.bfloat16)
    if out.numel():
        contiguous = _deep_gemm().m_grouped_fp8_gemm_nt_contiguous
        contiguous((x, x_scale), (w, w_scale), out, experts_of_rows)
    return out
