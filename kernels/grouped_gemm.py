"""FP8 matrix product per expert: the faster of our streaming kernel and DeepGEMM, by a measured table.

The choice depends on static facts alone (the form of the rows, the shape of the weight, how many rows are expected), so
a captured launch keeps it and nothing waits for the counts. Rows come in one of two forms: sorted by expert, each
expert's rows beginning at a multiple of `align`, or padded, [experts, max_rows, K]. DeepGEMM takes the padded form, and
the sorted one if `align` is a multiple of 128.
"""

import torch
from torch import Tensor

from kernels.fp8_gemm_deepgemm import CONTIGUOUS_ALIGN, grouped_gemm_contiguous, grouped_gemm_masked
from kernels.grouped_gemm_stream import ROW_ALIGN, check_operands, grouped_gemm_stream
from kernels.permute import gather_rows, row_experts

__all__ = ["ROW_ALIGN", "grouped_gemm"]

OURS_ROWS = 64  # rows an expert up to which our kernel is ahead of both of DeepGEMM's
# Rows an expert between which it is faster to load scattered rows in the product than to copy them before: there the
# tile does not gain from loads through TMA what the copy costs. So few rows as GATHER_FEW in all are not worth a copy.
GATHER_FROM, GATHER_TO = 17, 32
GATHER_FEW = 64


def grouped_gemm(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None = None,
    *,
    align: int = ROW_ALIGN,
    expected_rows: int | None = None,
    mean_rows: int | None = None,
    owners: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Multiply each expert's rows by its weight.

    Args:
        x: e4m3 [M, K], sorted by expert, or [tokens, K] with `sources`; x_scale: fp32 [.., ceil(K/128)] laid out by
            `tiles.scale_buffer`. Or padded: [experts, max_rows, K], of which an expert's first rows live, and scales
            by `tiles.padded_scale_buffer`.
        w: e4m3 [experts, N, K]; w_scale: fp32 [experts, ceil(N/128), ceil(K/128)].
        counts: int32 [experts]: rows of each expert.
        sources: int32 [M], the row of `x` behind each sorted row; entries outside the experts' rows are not read.
        align: each expert's sorted rows begin at a multiple of it; 4 or more, so that TMA can load the scales.
        expected_rows: about what the busiest expert gets, for the choices; any value gives right results.
        mean_rows: about what an expert gets on average, which DeepGEMM wants to know in the padded form; by default
            `expected_rows`.
        owners: int32 [M], `permute.row_experts` of the counts, if it is at hand; only a wide `align` asks for it.

    Returns:
        `out_dtype` [M, N] or [experts, max_rows, N]; rows outside the experts' are not written.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: the table says DeepGEMM and it is not installed.
    """
    rows = check_operands(x, x_scale, w, w_scale, counts, sources, align)
    expected = expected_rows or rows[-1]
    if sources is not None and sources.shape[0] > GATHER_FEW and not GATHER_FROM <= expected <= GATHER_TO:
        x, x_scale = gather_rows(x, x_scale, sources)
        sources = None
    aligned = x.dim() == 3 or align % CONTIGUOUS_ALIGN == 0
    if expected <= OURS_ROWS or sources is not None or not aligned or out_dtype != torch.bfloat16:
        return grouped_gemm_stream(
            x, x_scale, w, w_scale, counts, sources, align=align, expected_rows=expected, out_dtype=out_dtype
        )
    if x.dim() == 3:
        return grouped_gemm_masked(x, x_scale, w, w_scale, counts, mean_rows or expected)
    if owners is None:
        owners = row_experts(counts, rows[0], align)
    return grouped_gemm_contiguous(x, x_scale, w, w_scale, owners)
