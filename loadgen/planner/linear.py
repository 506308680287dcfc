"""Weights of linear layers as the kernels read them."""

from loadgen.planner.model_shapes import ModelShape


def linear_precision(model: ModelShape) -> str:
    """Operand format of the model's linear layers."""
    return "fp8" if model.linear_bytes == 1 else "bf16"


def linear_bytes(model: ModelShape, out: float, depth: float) -> float:
    """Weight bytes with one fp32 scale per 128 x 128 block; edges ignored, since shapes may be fractions under TP."""
    return out * depth * (1 + 4 / 128**2 if model.linear_bytes == 1 else 2)
