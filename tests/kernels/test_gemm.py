"""FP8 matrix products, dense and per expert, against their references."""

import pytest
import torch

from kernels import fp8_gemm, grouped_gemm_ref
from kernels.errors import KernelArgumentError
from kernels.fp8_gemm_ahead import AheadTile, fp8_gemm_ahead
from kernels.fp8_gemm_ref import fp8_gemm as fp8_gemm_reference
from kernels.fp8_gemm_splitk import fp8_gemm_splitk
from kernels.grouped_gemm import grouped_gemm
from kernels.grouped_gemm_stream import ROW_ALIGN, grouped_gate_up, grouped_gemm_stream
from kernels.tiles import Tile, padded_scale_buffer
from tests.kernels.closeness import assert_close, assert_quantised, quantised, weight


@pytest.mark.parametrize("tile", [Tile(16, 64, 1), Tile(16, 128, 3), Tile(32, 256, 2, warps=8)])
@pytest.mark.parametrize(("rows", "columns", "inner"), [(1, 64, 512), (19, 130, 272), (0, 64, 128)])
def test_splitk(rows, columns, inner, tile, device):
    x, x_scale = quantised(rows, inner, device)
    w, w_scale = weight(columns, inner, device=device)
    out = fp8_gemm_splitk(x, x_scale, w, w_scale, out_dtype=torch.float32, tile=tile)
    reference = fp8_gemm_reference(x, x_scale, w, w_scale, out_dtype=torch.float32)
    assert_close(out, reference, torch.bfloat16)
    again = fp8_gemm_splitk(x, x_scale, w, w_scale, out_dtype=torch.float32, tile=tile)
    assert torch.equal(out, again)
    parts = fp8_gemm_splitk(x, x_scale, w, w_scale, tile=tile, reduce=False)
    assert_close(parts.sum(0), reference, torch.bfloat16)


def test_a_row_does_not_depend_on_its_batch(device):
    x, x_scale = quantised(40, 512, device)
    w, w_scale = weight(128, 512, device=device)
    whole = fp8_gemm.fp8_gemm(x[:20], x_scale[:20], w, w_scale)
    alone_x, alone_scale = quantised(1, 512, device)
    alone_x.copy_(x[7:8])
    alone_scale.copy_(x_scale[7:8])
    assert torch.equal(fp8_gemm.fp8_gemm(alone_x, alone_scale, w, w_scale), whole[7:8])


def live_rows(counts: torch.Tensor, rows: int) -> torch.Tensor:
    live, start = torch.zeros(rows, dtype=torch.bool), 0
    for count in counts.tolist():
        live[start : start + count] = True
        start += -(-count // ROW_ALIGN) * ROW_ALIGN
    return live


@pytest.mark.parametrize(
    ("counts", "gather", "tile"),
    [
        ([3, 0, 18], False, Tile(16, 128, splits=4)),
        ([3, 0, 18], True, Tile(16, 128)),
        ([0, 0, 0], False, Tile(16, 128, splits=4)),
        ([1, 1, 1], True, Tile(32, 256, warps=8)),
        ([0, 23, 0], False, Tile(32, 256, splits=2, warps=8)),
        ([3, 0, 18], False, Tile(16, 128, stages=2, unroll=2)),
    ],
)
def test_grouped(counts, gather, tile, device):
    counted = torch.tensor(counts, dtype=torch.int32, device=device)
    rows = 32
    x, x_scale = quantised(9 if gather else rows, 256, device)
    w, w_scale = weight(3, 512, 256, device=device)
    sources = torch.randint(0, 9, (rows,), dtype=torch.int32, device=device) if gather else None
    live = live_rows(counted, rows)
    args = (x, x_scale, w, w_scale, counted, sources)
    out = grouped_gemm_stream(*args, out_dtype=torch.float32, tile=tile)
    reference = grouped_gemm_ref.grouped_gemm(*args, out_dtype=torch.float32)
    assert_close(out[live], reference[live], torch.bfloat16)
    if tile.columns == 128:
        q, scale = grouped_gate_up(*args, tile=Tile(tile.rows, 128, stages=tile.stages, unroll=tile.unroll))
        reference_q, reference_scale = grouped_gemm_ref.grouped_gate_up(*args)
        assert_quantised((q[live], scale[live]), (reference_q[live], reference_scale[live]), exact=False)


@pytest.mark.parametrize("expected", [8, 20, 50])
def test_scattered_rows_copied_or_not(expected, device):
    counts = torch.tensor([60, 0, 21], dtype=torch.int32, device=device)
    x, x_scale = quantised(9, 256, device)
    w, w_scale = weight(3, 256, 256, device=device)
    sources = torch.randint(0, 9, (96,), dtype=torch.int32, device=device)
    live = live_rows(counts, 96)
    args = (x, x_scale, w, w_scale, counts, sources)
    reference = grouped_gemm_ref.grouped_gemm(*args)
    assert_close(grouped_gemm(*args, expected_rows=expected)[live], reference[live])


def padded(experts, rows, inner, device):
    """Activations [experts, rows, K] and their scales where the kernels read them."""
    x, x_scale = quantised(experts * rows, inner, device)
    laid_out = padded_scale_buffer(experts, rows, x_scale.shape[1], device)
    laid_out.copy_(x_scale.reshape(experts, rows, -1))
    return x.view(experts, rows, inner), laid_out


@pytest.mark.parametrize("rows", [10, 36])
@pytest.mark.parametrize("tile", [Tile(16, 128, splits=2), Tile(32, 128, stages=2, unroll=2)])
def test_grouped_in_the_padded_form(rows, tile, device):
    counts = torch.tensor([rows, 0, 3], dtype=torch.int32, device=device)
    x, x_scale = padded(3, rows, 256, device)
    w, w_scale = weight(3, 512, 256, device=device)
    args = (x, x_scale, w, w_scale, counts)
    live = torch.arange(rows, device=device)[None] < counts[:, None]
    out = grouped_gemm_stream(*args, out_dtype=torch.float32, tile=tile)
    reference = grouped_gemm_ref.grouped_gemm(*args, out_dtype=torch.float32)
    assert_close(out[live], reference[live], torch.bfloat16)
    q, scale = grouped_gate_up(*args, tile=Tile(tile.rows, 128, stages=tile.stages, unroll=tile.unroll))
    reference_q, reference_scale = grouped_gemm_ref.grouped_gate_up(*args)
    assert_quantised((q[live], scale[live]), (reference_q[live], reference_scale[live]), exact=False)
    assert_close(grouped_gemm(*args, expected_rows=8)[live], reference[live])


def test_wrong_arguments_are_named(device):
    x, x_scale = quantised(4, 256, device)
    w, w_scale = weight(128, 256, device=device)
    with pytest.raises(KernelArgumentError, match="x_scale is"):
        fp8_gemm_splitk(x, x_scale[:3], w, w_scale)
    with pytest.raises(KernelArgumentError, match="x_scale is"):
        fp8_gemm_splitk(x, x_scale.contiguous(), w, w_scale)
    with pytest.raises(KernelArgumentError, match=r"w is torch\.float32"):
        fp8_gemm_splitk(x, x_scale, w.float(), w_scale)
    with pytest.raises(KernelArgumentError, match="counts is"):
        grouped_gemm(x, x_scale, w[None], w_scale[None], torch.ones(2, dtype=torch.int32, device=device))
    with pytest.raises(KernelArgumentError, match=r"x\.device is cpu: must be a GPU"):
        fp8_gemm_ahead(x.cpu(), x_scale, w, w_scale, AheadTile(16))


@pytest.mark.parametrize(
    ("tile", "named"),
    [
        ({"rows": 16, "stages": 2}, "stages is 2"),
        ({"rows": 16, "groups": 2, "along": "k", "stages": 7}, "stages is 7"),
        ({"rows": 48, "groups": 32, "along": "k", "stages": 96}, "rows is 48"),
        ({"rows": 128, "along": "tokens"}, "rows is 128"),
        ({"rows": 16, "stages": 4, "ahead": 3}, "ahead is 3"),
        ({"rows": 128, "groups": 2, "along": "k", "stages": 6, "ahead": 1}, "bytes of sums is 65536"),
    ],
)
def test_rings_that_could_not_turn_are_refused(tile, named):
    with pytest.raises(KernelArgumentError, match=named):
        AheadTile(**tile)
