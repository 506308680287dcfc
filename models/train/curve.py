"""The loss curve of a training run as a small PNG."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def draw_curve(log_file: Path, image: Path) -> None:
    """Plot training and held-out loss over tokens from `loss.json`."""
    log = json.loads(log_file.read_text())
    figure, axes = plt.subplots(figsize=(6.4, 3.6), dpi=90)
    for name, colour, label in (("next", "tab:blue", "next token"), ("mtp", "tab:orange", "MTP, the token after")):
        axes.plot([s["tokens"] / 1e6 for s in log["steps"]], [s[name] for s in log["steps"]], colour, lw=0.6, alpha=0.5)
        points = log["evaluations"]
        axes.plot([p["tokens"] / 1e6 for p in points], [p[name] for p in points], colour, marker="o", ms=3, label=label)
    axes.set(xlabel="training tokens (millions)", ylabel="cross-entropy (nats per token)", ylim=(1.5, 5.5))
    axes.set_title("training (thin) and held-out text with FP8 weights (dots)", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(image)
    plt.close(figure)
