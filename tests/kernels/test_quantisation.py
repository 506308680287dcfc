"""Activation quantisation, norms and SwiGLU against their references."""

import pytest
import torch

from kernels import quant_fp8, quant_fp8_ref, rms_norm, rms_norm_ref, silu_mul_quant, silu_mul_quant_ref
from kernels.errors import KernelArgumentError
from kernels.fp8_block_ref import dequantize_block, dequantize_per_token, quantize_block
from tests.kernels.closeness import assert_close, assert_quantised

SHAPES = [(1, 128), (3, 320), (5, 896), (0, 128)]
EPS = 1e-6


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_quantize_per_token(rows, columns, device):
    x = torch.randn(rows, columns, device=device)
    if rows:
        x[0] = 0  # a row of zeros divides by nothing
    assert_quantised(quant_fp8.quantize_per_token(x), quant_fp8_ref.quantize_per_token(x), exact=True)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_add_rms_norm_quant(rows, columns, splits, device, on_gpu):
    kind = torch.bfloat16 if on_gpu else torch.float32
    x = torch.randn(splits, rows, columns, device=device) if splits > 1 else torch.randn(rows, columns, device=device)
    residual, weight = (torch.randn(s, device=device).to(kind) for s in ((rows, columns), (columns,)))
    total, normed, *quantised = quant_fp8.add_rms_norm_quant(x, residual, weight, EPS)
    reference_total, reference_normed, *reference = quant_fp8_ref.add_rms_norm_quant(x, residual, weight, EPS)
    assert_close(total, reference_total)
    assert_close(normed, reference_normed)
    assert_quantised(tuple(quantised), tuple(reference), exact=False)
    row = x if splits > 1 else x.to(kind)
    assert_quantised(
        quant_fp8.rms_norm_quant(row, weight, EPS), quant_fp8_ref.rms_norm_quant(row, weight, EPS), exact=False
    )
    assert_close(rms_norm.rms_norm(reference_total, weight, EPS), rms_norm_ref.rms_norm(reference_total, weight, EPS))


@pytest.mark.parametrize("counts", [[2, 0, 6], [0, 0, 0], [7, 7, 7]])
def test_silu_mul_quant_touches_live_rows_only(counts, device):
    x = torch.randn(3, 7, 512, device=device)
    live = torch.arange(7, device=device)[None] < torch.tensor(counts, device=device)[:, None]
    x[~live] = float("nan")
    counted = torch.tensor(counts, dtype=torch.int32, device=device)
    q, scale = silu_mul_quant.silu_mul_quant(x, counted)
    reference_q, reference_scale = silu_mul_quant_ref.silu_mul_quant(x.nan_to_num(), counted)
    assert_quantised((q[live], scale[live]), (reference_q[live], reference_scale[live]), exact=False)


def test_silu_mul_quant_without_counts(device):
    x = torch.randn(1, 5, 256, device=device)
    q, scale = silu_mul_quant.silu_mul_quant(x)
    reference = silu_mul_quant_ref.silu_mul_quant(x)
    assert_quantised((q, scale), reference, exact=False)


def test_scales_are_column_major(device):
    _, scale = quant_fp8.quantize_per_token(torch.randn(6, 384, device=device))
    assert scale.stride() == (1, 8)


@pytest.mark.parametrize(("rows", "columns"), [(192, 96), (576, 256), (128, 128), (1, 1)])
def test_block_scales_of_partial_blocks(rows, columns):
    w = torch.randn(rows, columns) * torch.logspace(-2, 2, rows)[:, None]
    q, scale = quantize_block(w)
    assert scale.shape == (-(-rows // 128), -(-columns // 128))
    back = dequantize_block(q, scale)
    full = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    torch.testing.assert_close(back, q.float() * full, rtol=0, atol=0)
    assert float((back - w).abs().max() / w.abs().max()) < 0.04


def test_dequantise_inverts(device):
    x = torch.randn(4, 300, device=device)
    q, scale = quant_fp8_ref.quantize_per_token(x)
    assert float((dequantize_per_token(q, scale) - x).abs().max() / x.abs().max()) < 0.04


def test_wrong_arguments_are_named(device):
    x = torch.randn(2, 256, device=device)
    with pytest.raises(KernelArgumentError, match="weight is"):
        quant_fp8.rms_norm_quant(x, torch.ones(255, device=device), EPS)
    with pytest.raises(KernelArgumentError, match="residual is"):
        quant_fp8.add_rms_norm_quant(x, x[:1], torch.ones(256, device=device), EPS)
    with pytest.raises(KernelArgumentError, match="x is"):
        quant_fp8.quantize_per_token(x.T)
    with pytest.raises(KernelArgumentError, match="counts is"):
        silu_mul_quant.silu_mul_quant(x[None], torch.ones(2, dtype=torch.int32, device=device))
