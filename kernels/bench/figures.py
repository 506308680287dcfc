"""Roofline figures: products over batch and expert parallelism, from a file of results."""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def draw(results: Path, folder: Path) -> list[Path]:
    """Write `gemm.png` and `grouped_gemm.png` beside each other in `folder`; returns their paths."""
    document = json.loads(results.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    rows, limits = document["results"], document["limits"]
    return [
        _roofline(
            [r for r in rows if r["op"] in {"qkv_a", "q_b", "o_proj"} and r["backend"] in {"tandem", "deepgemm"}],
            limits,
            "FP8 projections, batch 1 to 256",
            folder / "gemm.png",
        ),
        _roofline(
            [r for r in rows if r["op"].startswith("grouped G")],
            limits,
            "Grouped GEMMs, EP8 (32 experts) to EP128 (2 experts)",
            folder / "grouped_gemm.png",
        ),
    ]


def _roofline(rows: list[dict[str, Any]], limits: dict[str, float], title: str, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 4.5))
    ridge = limits["fp8_flops"] / limits["bytes_per_s"]
    intensity = [0.5, ridge, 4096.0]
    roof = [min(i * limits["bytes_per_s"], limits["fp8_flops"]) / 1e12 for i in intensity]
    axes.plot(intensity, roof, color="black", linewidth=1, label="measured limits")
    for label in sorted({f"{r['op']}, {r['backend']}" for r in rows}):
        points = [r for r in rows if f"{r['op']}, {r['backend']}" == label and r["gbps"]]
        points.sort(key=lambda r: r["tflops"] / r["gbps"])
        axes.plot(
            [r["tflops"] * 1e3 / r["gbps"] for r in points], [r["tflops"] for r in points], marker="o", label=label
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s", title=title)
    axes.legend(fontsize=7)
    axes.grid(which="both", alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
