"""Activation quantisation per token and 128 channels, alone or behind RMSNorm and a residual add.

One program holds one token's row, so the row is read once and every output written once: normed row, FP8 row and its
scales, the scales straight in the column-major layout that the matrix kernels load (`tiles.scale_buffer`).
Batch-invariant: a row's result depends on the row alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import launch_options, release, wait
from kernels.tiles import pow2_at_least, scale_buffer

FP8_MAX = tl.constexpr(448.0)
AMAX_FLOOR = tl.constexpr(1e-10)
MAX_ROW = 65536


@triton.jit
def quantize_groups(values):
    """fp32 [groups, 128] to (e4m3 as fp32's nearest, scale [groups]); correctly rounded divisions, as torch's."""
    amax = tl.maximum(tl.max(tl.abs(values), axis=1), AMAX_FLOOR)
    q = values * tl.div_rn(tl.full(amax.shape, FP8_MAX, tl.float32), amax)[:, None]
    return q, tl.div_rn(amax, tl.full(amax.shape, FP8_MAX, tl.float32))


@triton.jit
def _norm_quant(
    x_ptr, residual_ptr, weight_ptr, sum_ptr, normed_ptr, q_ptr, scale_ptr,
    eps, stride_x, stride_part, stride_residual, stride_scale, H,
    GROUPS: tl.constexpr, SPLITS: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    live = at < H
    release(PDL)
    if NORM:
        weight = tl.load(weight_ptr + at, mask=live, other=0.0).to(tl.float32)  # no kernel before this one makes it
    wait(PDL)
    x = tl.load(x_ptr + row * stride_x + at, mask=live, other=0.0).to(tl.float32)
    for s in tl.static_range(1, SPLITS):
        x += tl.load(x_ptr + s * stride_part + row * stride_x + at, mask=live, other=0.0)
    if ADD:
        x += tl.load(residual_ptr + row * stride_residual + at, mask=live, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * H + at, total, mask=live)
        x = total.to(tl.float32)
    elif SPLITS > 1:
        x = x.to(weight_ptr.dtype.element_ty).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / H + eps)
        kind = weight_ptr.dtype.element_ty
        normed = (weight * (x * inverse).to(kind).to(tl.float32)).to(kind)
        if KEEP:
            tl.store(normed_ptr + row * H + at, normed, mask=live)
        x = normed.to(tl.float32)
    q, scale = quantize_groups(x)
    tl.store(q_ptr + row * H + at, q.to(q_ptr.dtype.element_ty), mask=live)
    tl.store(scale_ptr + row + group * stride_scale, scale, mask=group * 128 < H)


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise `x` [tokens, K] (bf16, fp16 or fp32): (e4m3 [tokens, K], fp32 scale [tokens, ceil(K/128)]).

    Raises:
        KernelArgumentError: wrong shape, type or stride, or a row longer than 65,536.
    """
    check.shape("x", x, (None, None))
    _, _, q, scale = _launch(x, None, None, 0.0)
    return q, scale


def rms_norm_quant(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm `x` [tokens, H] in weight's type (or fp32 partial sums [splits, tokens, H]) and quantise that.

    Returns:
        e4m3 [tokens, H], fp32 scale [tokens, ceil(H/128)].

    Raises:
        KernelArgumentError: wrong shape, type or stride, or a row longer than 65,536.
    """
    if x.dim() == 2:
        check.dtype("x", x, weight.dtype)
    _, _, q, scale = _launch(x, None, weight, eps)
    return q, scale


def add_rms_norm_quant(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add `x` [tokens, H] (or partial sums) to `residual` [tokens, H] in fp32, RMSNorm the rounded sum, quantise it.

    Returns:
        sum [tokens, H] in residual's type, normed [tokens, H] in weight's type, e4m3, scale as `rms_norm_quant`.
    """
    return _launch(x, residual, weight, eps)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.dim() == 3:
        check.dtype("x", x, torch.float32)
    elif x.dim() != 2:
        check.shape("x", x, (None, None))
    check.dtype("x", x, torch.bfloat16, torch.float16, torch.float32)
    check.dense_rows("x", x)
    tokens, hidden = x.shape[-2:]
    check.at_most("x.shape[-1]", hidden, MAX_ROW)
    if weight is not None:
        check.shape("weight", weight, (hidden,))
        check.same_device("weight", weight, x)
        check.contiguous("weight", weight)
    if residual is not None:
        check.shape("residual", residual, (tokens, hidden))
        check.same_device("residual", residual, x)
        check.dense_rows("residual", residual)
    groups = -(-hidden // 128)
    total = x.new_empty((tokens, hidden), dtype=residual.dtype) if residual is not None else x
    normed = x.new_empty((tokens, hidden), dtype=weight.dtype) if weight is not None and residual is not None else x
    q = x.new_empty((tokens, hidden), dtype=check.FP8)
    scale = scale_buffer(tokens, groups, x.device)
    if tokens and hidden:
        block = pow2_at_least(groups)
        _norm_quant[(tokens,)](
            x, residual if residual is not None else x, weight if weight is not None else x, total, normed, q, scale,
            eps, x.stride(-2), x.stride(0), residual.stride(0) if residual is not None else 0, scale.stride(1), hidden,
            GROUPS=block, SPLITS=x.shape[0] if x.dim() == 3 else 1, ADD=residual is not None, NORM=weight is not None,
            KEEP=normed is not x,
            num_warps=16 if block >= 128 else 8 if block >= 16 else 4, **launch_options(x.device),
        )  # fmt: skip
    return total, normed, q, scale
