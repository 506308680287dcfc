"""The parts of the benchmarks that need no GPU: floors, tables, figures."""

import json
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from kernels.bench import timing
from kernels.bench.cli import app
from kernels.bench.contest import ratio
from kernels.bench.figures import draw
from kernels.bench.record import Limits, Work, result
from kernels.bench.table import CONTROL, ITSELF, START, STOP, rewrite

LIMITS = Limits(4e12, 8e14, 1.6e15)


def test_a_floor_is_the_larger_of_memory_and_arithmetic():
    assert Work(4e6).floor_us(LIMITS) == pytest.approx(1.0)
    assert Work(4e6, 3.2e9).floor_us(LIMITS) == pytest.approx(2.0)
    assert Work(4e6, 3.2e9, fp8=False).floor_us(LIMITS) == pytest.approx(4.0)
    measured = result("op", "tandem", {"M": 1}, 4.0, Work(8e6, 3.2e9), LIMITS)
    assert (measured.fraction_of_limit, measured.gbps, measured.tflops) == (0.5, 2000.0, 800.0)


def test_a_ratio_is_taken_round_by_round():
    """A round in which the chip was slow is slow for both."""
    found = ratio([2.0, 4.0, 9.0, 40.0], [1.0, 2.0, 3.0, 20.0])
    assert (found.low, found.middle) == (2.0, 2.0)
    assert found.high == pytest.approx(2.75)


def test_contenders_are_measured_in_turns(monkeypatch):
    order = []

    def replay(graphs, replays):
        order.append((graphs[0][0], replays))
        return 8.0 * len(order)

    monkeypatch.setattr(timing, "capture", lambda calls, launches: (calls[0], launches))
    monkeypatch.setattr(timing, "_replay_us", replay)
    times = timing.times_us({name: [name] for name in "abc"}, launches=4, replays=30)
    after_warming = [name for name, _ in order[3 * timing.WARM_REPLAYS :]]
    rounds = ["".join(after_warming[i : i + 3]) for i in range(0, 90, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    followers = Counter(pair for one in rounds for pair in (one[:2], one[1:]))
    assert set(followers) == {"ab", "ac", "ba", "bc", "ca", "cb"}
    assert min(followers.values()) >= 4
    assert all(len(us) == 30 for us in times.values())
    assert times["c"][0] == 8.0 * (order.index(("c", 1), 3 * timing.WARM_REPLAYS) + 1) / 4  # a graph of four calls
    order.clear()
    timing.times_us({"a": ["a"]}, launches=4, replays=1, ordered=True)
    assert order == [("a", 4)] * 3  # four launches of a graph with one call


def row(op, us, target, library="deepgemm", spread=0.001):
    quartiles = {"low": us / 12 - spread, "middle": us / 12, "high": us / 12 + spread}
    return {"op": op, "backend": "tandem", "shape": {"M": 64}, "us": us, "tflops": 10.0, "gbps": 100.0,
            "fraction_of_limit": 0.5, "target_us": target, "baseline": {library: 12.0},
            "ratio": {library: quartiles}}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(
        json.dumps(
            {
                "machine": {"name": "card", "driver_version": "1", "clocks.sm": "2 MHz"},
                "date": "today",
                "versions": {"torch": "3", "flashinfer-python": "absent"},
                "command": "tandem bench kernels",
                "limits": {"bytes_per_s": 4e12, "bf16_flops": 8e14, "fp8_flops": 1.6e15},
                "results": [
                    row("q_b", 9.0, 10.0),
                    row("o_proj", 12.3, 10.0),
                    row("qkv_a", 12.06, None),
                    row(CONTROL, 12.12, None, library=ITSELF),
                ],
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
    assert "| q_b | M 64 | 9.0 | 10.0 | yes | 0.50 | deepgemm 12.0 | 0.750 (0.749 to 0.751) |" in text
    rewrite(readme, [results])
    assert readme.read_text() == text


def test_table_names_what_is_behind_a_library_by_more_than_the_noise(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{START}{STOP}")
    rewrite(readme, [results])
    text = readme.read_text()
    # The control came 1 % apart: o_proj's 2.5 % are more, qkv_a's 0.5 % are not.
    assert "a library: 3; behind the best one: 1 (one kernel measured twice came 1.0 % apart)." in text
    assert "- o_proj, M 64: 1.025 (1.024 to 1.026)" in text
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("- ")][1:] == ["- o_proj"]
    assert CONTROL not in text


def test_table_does_not_claim_a_control_that_was_not_measured(results, tmp_path):
    document = json.loads(results.read_text())
    document["results"] = [one for one in document["results"] if one["op"] != CONTROL]
    results.write_text(json.dumps(document))
    readme = tmp_path / "README.md"
    readme.write_text(f"{START}{STOP}")
    rewrite(readme, [results])
    assert "behind the best one: 2 (one kernel was not measured twice)." in readme.read_text()


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
