"""Fit the efficiency curves on the rows marked for it, and the residuals of all rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadgen.planner.efficiency import Curve, kernel_us
from loadgen.planner.hardware import hardware
from loadgen.planner.kernel_points import KernelPoint, kernel_points
from loadgen.planner.minimise import minimise

Parameters = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Residual:
    """One value of one table against the fitted model."""

    library: str
    what: str
    hardware: str
    known_us: float
    predicted_us: float
    fit: bool
    excluded: str = ""

    @property
    def error(self) -> float:
        """Relative, positive when the model is slower than the table."""
        return self.predicted_us / self.known_us - 1


def fit_curves() -> dict[str, Curve]:
    """Every fitted curve by library. Each fit minimises squared relative errors; all constants are positive."""
    points = kernel_points()
    gemm = _fit(
        points,
        "deepgemm-2025",
        lambda x: Curve(fixed_us=x[0], per_k_us=x[1], wave_us=x[2], compute=x[3], memory=x[4]),
        (3.0, 0.1, 0.5, 0.7, 1.0),
    )
    # The later version on our cards: rates are properties of the silicon, so only its latencies are new.
    later = _fit(
        points,
        "deepgemm-2026",
        lambda x: replace(gemm, fixed_us=x[0], per_k_us=x[1], wave_us=x[2]),
        (6.0, 0.9, 2.0),
    )
    # At a handful of rows libraries switch to split-K or swapped operands: nothing waits for K, nothing is padded.
    small = _fit(
        points,
        "small-batch-gemm",
        lambda x: Curve(fixed_us=x[0], compute=0.15, whole_tiles=False, residual=0.15),
        (6.0,),
    )
    grouped = _fit(
        points,
        "deepgemm-grouped",
        lambda x: Curve(fixed_us=x[0], wave_us=x[1], compute=x[2], memory=x[3]),
        (5.0, 1.0, 0.7, 1.0),
    )
    fa3 = _fit(points, "flashinfer-fa3", lambda x: Curve(fixed_us=x[0], floor_us=20.0, compute=x[1]), (50.0, 0.6))
    flashmla = _fit(points, "flashmla", lambda x: Curve(fixed_us=5.0, compute=x[0], memory=x[1]), (0.6, 1.0))
    prefill = _fit(points, "fa3-prefill", lambda x: Curve(compute=x[0], half_length=x[1]), (0.7, 1000.0))
    elementwise = Curve(fixed_us=2.0, memory=0.95)
    curves = {
        "deepgemm-2025": gemm,
        "deepgemm-2026": later,
        "small-batch-gemm": small,
        "deepgemm-grouped": grouped,
        "flashinfer-fa3": fa3,
        "flashmla": flashmla,
        "fa3-prefill": prefill,
        "elementwise": elementwise,
    }
    return {
        name: replace(curve, residual=spread(kernel_residuals(points, curves, name))) for name, curve in curves.items()
    }


def kernel_residuals(points: Sequence[KernelPoint], curves: dict[str, Curve], library: str = "") -> list[Residual]:
    """Predicted against known for every row (of one library)."""
    rows = []
    for p in points:
        if library and p.library != library:
            continue
        predicted = kernel_us(p.operation, hardware(p.hardware), curves[p.library])
        rows.append(Residual(p.library, p.operation.name, p.hardware, p.us, predicted, p.fit, p.outlier))
    return rows


def spread(residuals: Sequence[Residual]) -> float:
    """Root mean square error of the rows left out of the fit (of all rows, where none was); at least 3 %."""
    kept = [r for r in residuals if not r.excluded]
    left_out = [r.error for r in kept if not r.fit] or [r.error for r in kept]
    return max(float(np.sqrt(np.mean(np.square(left_out)))), 0.03)


def _fit(
    points: Sequence[KernelPoint], library: str, make: Callable[[Parameters], Curve], start: Sequence[float]
) -> Curve:
    chosen = [p for p in points if p.library == library and p.fit]

    def cost(x: Parameters) -> float:
        curve = make(np.exp(x))
        overshoot = max(curve.compute - 0.95, 0) + max(curve.memory - 1.0, 0)
        errors = [np.log(kernel_us(p.operation, hardware(p.hardware), curve) / p.us) for p in chosen]
        return float(np.sum(np.square(errors))) + 100 * overshoot

    found = make(np.exp(minimise(cost, np.log(start).tolist())))
    return _rounded(found)


def _rounded(curve: Curve) -> Curve:
    """Four significant digits, so that the committed file reads well and reproduces exactly."""
    return replace(
        curve,
        fixed_us=significant(curve.fixed_us),
        per_k_us=significant(curve.per_k_us),
        wave_us=significant(curve.wave_us),
        compute=significant(curve.compute),
        memory=significant(curve.memory),
        half_length=significant(curve.half_length),
    )


def significant(value: float) -> float:
    return float(f"{value:.4g}")
