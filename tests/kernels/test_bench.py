"""The parts of the benchmarks that need no GPU: floors, tables, figures."""

import json

import pytest
import torch
from typer.testing import CliRunner

from kernels.bench.cli import app
from kernels.bench.figures import draw
from kernels.bench.record import Limits, Work, result
from kernels.bench.table import START, STOP, rewrite

LIMITS = Limits(4e12, 8e14, 1.6e15)


def test_a_floor_is_the_larger_of_memory_and_arithmetic():
    assert Work(4e6).floor_us(LIMITS) == pytest.approx(1.0)
    assert Work(4e6, 3.2e9).floor_us(LIMITS) == pytest.approx(2.0)
    assert Work(4e6, 3.2e9, fp8=False).floor_us(LIMITS) == pytest.approx(4.0)
    measured = result("op", "tandem", {"M": 1}, 4.0, Work(8e6, 3.2e9), LIMITS)
    assert (measured.fraction_of_limit, measured.gbps, measured.tflops) == (0.5, 2000.0, 800.0)


@pytest.fixture
def results(tmp_path):
    def row(op, us, target, backend="tandem"):
        shape = {"M": 64}
        return {"op": op, "backend": backend, "shape": shape, "us": us, "tflops": 10.0, "gbps": 100.0,
                "fraction_of_limit": 0.5, "target_us": target, "baseline": {"deepgemm": 12.0}}  # fmt: skip

    path = tmp_path / "results.json"
    path.write_text(
        json.dumps(
            {
                "machine": {"name": "card", "driver_version": "1", "clocks.sm": "2 MHz"},
                "date": "today",
                "versions": {"torch": "3", "flashinfer-python": "absent"},
                "command": "tandem bench kernels",
                "limits": {"bytes_per_s": 4e12, "bf16_flops": 8e14, "fp8_flops": 1.6e15},
                "results": [row("q_b", 9.0, 10.0), row("o_proj", 11.0, 10.0), row("qkv_a", 5.0, None)],
            }
        )
    )
    return path


def test_table_counts_targets_and_keeps_the_rest_of_the_page(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{START}\nold\n{STOP}\nafter\n")
    rewrite(readme, [results])
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "Targets met: 1 of 2." in text
    assert "absent" not in text
    assert "| q_b | M 64 | 9.0 | 10.0 | yes | 0.50 | deepgemm 12.0 |" in text
    rewrite(readme, [results])
    assert readme.read_text() == text


def test_figures_are_drawn(results, tmp_path):
    paths = draw(results, tmp_path / "figures")
    assert [path.name for path in paths] == ["gemm.png", "grouped_gemm.png"]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize("command", ["kernels", "layer", "once"])
def test_a_machine_without_a_gpu_is_told_in_one_line(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"tandem bench {command}: needs an NVIDIA GPU; torch ")
