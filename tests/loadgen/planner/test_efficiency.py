"""The laws of kernel time, over every committed curve and every card."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.planner.efficiency import Curve, kernel_us, soft_max
from loadgen.planner.hardware import HARDWARE
from loadgen.planner.operations import KernelClass, Operation
from loadgen.planner.roofline import ceiling_flops_per_s, roofline_us
from loadgen.planner.stacks import committed_constants, curves_of

CURVES = curves_of(committed_constants())
operations = st.builds(
    lambda flops, moved, slack, depth, tiles, precision: Operation(
        "any", 1, KernelClass.GEMM, precision, flops, moved, flops * slack, depth, tiles, 4096.0
    ),
    flops=st.floats(0, 1e16),
    moved=st.floats(1, 1e12),
    slack=st.floats(1, 64),
    depth=st.floats(0, 20_000),
    tiles=st.floats(0, 1e5),
    precision=st.sampled_from(["fp8", "bf16"]),
)
curves = st.sampled_from(sorted(CURVES))
cards = st.sampled_from(sorted(HARDWARE))
clocks = st.floats(0.3, 1.0)


@given(operation=operations, name=curves, card=cards, sustained=clocks)
@settings(max_examples=60, deadline=None)
def test_no_kernel_beats_its_roofline(operation, name, card, sustained):
    gpu = HARDWARE[card]
    assert kernel_us(operation, gpu, CURVES[name], sustained) >= roofline_us(operation, gpu) * (1 - 1e-9)


@given(operation=operations, name=curves, card=cards, flops=st.floats(0, 1e15), moved=st.floats(0, 1e11))
@settings(max_examples=60, deadline=None)
def test_time_never_falls_when_flops_or_bytes_grow(operation, name, card, flops, moved):
    gpu, curve = HARDWARE[card], CURVES[name]
    grown = Operation(
        operation.name,
        operation.stage,
        operation.kernel,
        operation.precision,
        operation.flops + flops,
        operation.bytes + moved,
        operation.padded_flops + flops,
        operation.depth,
        operation.tiles,
        operation.length,
    )
    assert kernel_us(grown, gpu, curve) >= kernel_us(operation, gpu, curve) * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(CURVES))
def test_committed_shares_are_shares(name):
    curve = CURVES[name]
    assert 0 < curve.compute <= 1
    assert 0 < curve.memory <= 1
    assert min(curve.fixed_us, curve.per_k_us, curve.wave_us, curve.half_length) >= 0


def test_soft_maximum_is_the_larger_far_from_the_ridge_and_26_percent_more_on_it():
    assert soft_max(100.0, 1.0) == pytest.approx(100.0, rel=1e-5)
    assert soft_max(10.0, 10.0) == pytest.approx(12.6, rel=1e-2)
    assert soft_max(0.0, 0.0) == 0.0


def test_a_tail_is_never_longer_than_the_work():
    curve = Curve(fixed_us=50.0, floor_us=10.0)
    gpu = HARDWARE["h200"]
    small = Operation("small", 1, KernelClass.MLA_DECODE, "bf16", 0.0, 4.28e6)  # 1 us at the achieved bandwidth
    large = Operation("large", 1, KernelClass.MLA_DECODE, "bf16", 0.0, 4.28e8)
    assert kernel_us(small, gpu, curve) == pytest.approx(12.0)
    assert kernel_us(large, gpu, curve) == pytest.approx(150.0)


def test_ceiling_meets_at_the_ridge():
    gpu = HARDWARE["h100"]
    ridge = 1979e12 / 3.35e12
    assert ceiling_flops_per_s(ridge, "fp8", gpu) == pytest.approx(1979e12)
    assert ceiling_flops_per_s(ridge / 2, "fp8", gpu) == pytest.approx(1979e12 / 2)
