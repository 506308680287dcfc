"""One matrix product per expert over rows sorted by expert, reference."""

import torch
from torch import Tensor

from kernels.fp8_block_ref import dequantize_block, dequantize_per_token, quantize_per_token
from kernels.silu_mul_ref import silu_mul

ROW_ALIGN = 4


def grouped(x: Tensor, w: Tensor, counts: Tensor, align: int = 1) -> Tensor:
    """`x` [M, K] holds counts[0] rows of expert 0, then counts[1] of expert 1, ...; `w` [experts, N, K].

    Each expert's rows begin at a multiple of `align`. Returns [M, N] in x's type; rows of no expert are zero. An expert
    without rows is skipped.
    """
    out = x.new_zeros((x.shape[0], w.shape[1]))
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            out[start : start + count] = x[start : start + count] @ w[expert].T
            start += -(-count // align) * align
    return out


def grouped_gemm(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None = None,
    *,
    align: int = ROW_ALIGN,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """FP8 form of `grouped`: `x` e4m3 with scale per token and 128, `w` e4m3 with scale per expert and 128 x 128.

    `sources` int32 [M] names the row of `x` behind each sorted row; None means that x is sorted already. In the padded
    form x is [experts, max_rows, K], of which an expert's first rows live, and so is the result.
    """
    if x.dim() == 3:
        alone = [slice(e, e + 1) for e in range(x.shape[0])]
        return torch.stack(
            [grouped_gemm(x[e][0], x_scale[e][0], w[e], w_scale[e], counts[e], out_dtype=out_dtype) for e in alone]
        )
    rows = dequantize_per_token(x, x_scale)
    if sources is not None:
        rows = rows[sources.long().clamp(0, x.shape[0] - 1)]
    wide = torch.stack([dequantize_block(*pair) for pair in zip(w, w_scale, strict=True)])
    return grouped(rows, wide, counts, align).to(out_dtype)


def grouped_gate_up(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    counts: Tensor,
    sources: Tensor | None = None,
    *,
    align: int = ROW_ALIGN,
) -> tuple[Tensor, Tensor]:
    """`grouped_gemm` by [gate; up] weights [experts, 2 I, K], SwiGLU, quantisation: e4m3 [M, I], scale [M, I/128]."""
    both = grouped_gemm(x, x_scale, w, w_scale, counts, sources, align=align, out_dtype=torch.float32)
    q, scale = quantize_per_token(silu_mul(both).flatten(0, -2))
    return q.view(*both.shape[:-1], -1), scale.view(*both.shape[:-1], -1)
