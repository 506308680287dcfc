"""Hardware entries are complete and sourced."""

import pytest

from common.errors import InvalidInput
from loadgen.planner.figure import Kind
from loadgen.planner.hardware import HARDWARE, hardware


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_every_figure_has_a_source_and_no_achieved_rate_is_above_its_datasheet(name):
    gpu = hardware(name)
    assert all(figure.source and figure.value > 0 for figure in gpu.figures().values())
    assert gpu.memory_achieved_bytes_per_s.value <= gpu.memory_bytes_per_s.value
    assert gpu.nvlink_achieved_bytes_per_s.value <= gpu.nvlink_bytes_per_s.value
    assert gpu.network_achieved_bytes_per_s.value <= gpu.network_bytes_per_s.value


def test_our_own_figures_are_marked_measured():
    assert hardware("h200").memory_achieved_bytes_per_s.kind is Kind.MEASURED
    assert "H200" in hardware("H200").nvlink_achieved_bytes_per_s.source


def test_unknown_hardware_and_precision_name_what_is_known():
    with pytest.raises(InvalidInput, match="gb200, h100, h200, h800"):
        hardware("a100")
    with pytest.raises(InvalidInput, match="fp8, bf16"):
        hardware("h100").flops_per_s("int4")
