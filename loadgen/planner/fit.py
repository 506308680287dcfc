"""All constants, from the marked points, in three steps; `tandem plan --fit` runs this and compares with the file.

1. Kernel curves, each on half of its table.
2. Exchanges, each on at most half of its table (for pplx-kernels the report's 593 and 1012 us are in it).
3. Three constants of running inside a layer, on three numbers of the report: 1802, 270 and 367 us.

Nothing else is fitted: DeepSeek's and SGLang's throughputs only ever check the result.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from loadgen.planner.communication import Exchange
from loadgen.planner.efficiency import Curve
from loadgen.planner.exchange_fit import exchange_residuals, fit_exchanges
from loadgen.planner.kernel_fit import Parameters, Residual, fit_curves, kernel_residuals, significant
from loadgen.planner.kernel_points import kernel_points
from loadgen.planner.minimise import minimise
from loadgen.planner.report_layers import predicted_quantities
from loadgen.planner.report_points import REPORT_POINTS
from loadgen.planner.stacks import Stack, build_stack, curves_of, exchanges_of
from loadgen.planner.system_points import system_points

# Of the report's fitted numbers, those that exchanges alone explain are fitted with the exchanges.
_IN_LAYER_KEYS = ("ep8_total", "dual_grouped", "dual_dispatch")
# FlashInfer of April 2025 may not be faster than the best Hopper kernel published: FlashMLA's share on H800.
_MLA_CEILING = 0.75


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything fitted, and how far whole systems then are from what was published (root mean square)."""

    curves: dict[str, Curve]
    exchanges: dict[str, Exchange]
    in_layer: dict[str, float]
    system_residual: float = 0.1

    def as_json(self) -> dict[str, Any]:
        """The content of `fitted.json`."""
        return {
            "curves": {name: asdict(curve) for name, curve in self.curves.items()},
            "exchanges": {name: asdict(exchange) for name, exchange in self.exchanges.items()},
            "in_layer": self.in_layer,
            "system_residual": self.system_residual,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Constants":
        return cls(curves_of(content), exchanges_of(content), dict(content["in_layer"]), content["system_residual"])

    def stack(self, name: str) -> Stack:
        return build_stack(name, self.curves, self.exchanges, self.in_layer, self.system_residual)


def fit_constants() -> Constants:
    """Fit everything anew; deterministic."""
    curves, exchanges = fit_curves(), fit_exchanges()
    known = {p.key: p.value for p in REPORT_POINTS if p.key in _IN_LAYER_KEYS}

    def build(x: Parameters) -> Constants:
        launch, sustained, compute = (significant(float(v)) for v in np.exp(x))
        flashinfer = replace(curves["flashinfer-fa3"], compute=compute)
        return Constants(
            {**curves, "flashinfer-2025": flashinfer},
            exchanges,
            {"launch_us": launch, "sustained": sustained},
        )

    def cost(x: Parameters) -> float:
        constants = build(x)
        predicted = predicted_quantities(constants.stack("report-2025"))
        over = max(constants.curves["flashinfer-2025"].compute - _MLA_CEILING, 0.0)
        over += max(constants.in_layer["sustained"] - 1.0, 0.0)
        return sum(float(np.log(predicted[key] / value)) ** 2 for key, value in known.items()) + 100 * over

    constants = build(minimise(cost, np.log([4.0, 0.7, 0.65]).tolist(), rounds=150))
    errors = [point.error for point in system_points(constants.stack("deepep-2025"))]
    return replace(constants, system_residual=significant(float(np.sqrt(np.mean(np.square(errors))))))


def residuals(constants: Constants) -> list[Residual]:
    """Every kernel and exchange value against the constants."""
    return kernel_residuals(kernel_points(), constants.curves) + exchange_residuals(constants.exchanges)
