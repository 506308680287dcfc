"""Fit one `Exchange` per library on the values marked for it, and the residuals of all values."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadgen.planner.communication import Copies, Exchange, Traffic, exchange_us, token_bytes
from loadgen.planner.exchange_points import EXCHANGE_POINTS, ExchangePoint
from loadgen.planner.hardware import hardware
from loadgen.planner.kernel_fit import Parameters, Residual, significant, spread
from loadgen.planner.minimise import minimise

_DISPATCH, _COMBINE = token_bytes(7168)
# Routing of each table: DeepEP's own normal test is group-limited, all others draw experts freely.
_LIMITED = {"deepep-normal": (4, 8)}


def fit_exchanges() -> dict[str, Exchange]:
    """Every fitted library by name."""
    low_latency = Exchange("deepep-ll")
    found = [
        _fit(
            "deepep-ll",
            lambda x: replace(
                low_latency,
                fixed_us=(x[0], x[0]),
                network_fixed_us=(x[0], x[0]),
                nvlink_share=(x[1], x[1]),
                network_share=(x[2], x[2]),
            ),
            (30.0, 0.7, 0.9),
        ),
        *(
            _fit(
                name,
                lambda x, name=name: Exchange(  # type: ignore[misc]
                    name,
                    fixed_us=(x[0], x[0]),
                    network_fixed_us=(x[1], x[1]),
                    nvlink_share=(x[2], x[2]),
                    network_share=(x[3], x[3]),
                ),
                (10.0, 30.0, 0.5, 0.9),
            )
            for name in ("deepep-ll-h100", "pplx-garden")
        ),
        _fit(
            "deepep-normal",
            lambda x: Exchange(
                "deepep-normal",
                copies=Copies.NODE,
                fixed_us=(0.0, 0.0),
                network_fixed_us=(0.0, 0.0),
                nvlink_share=(0.8, 0.8),
                forward_share=x[0],
                network_share=(x[1], x[1]),
                sms=20,
                nvlink_overlaps=True,
            ),
            (0.5, 0.9),
        ),
        _fit(
            "deepep-normal-h100",
            lambda x: Exchange(
                "deepep-normal-h100",
                copies=Copies.NODE,
                fixed_us=(x[0], x[1]),
                network_fixed_us=(x[0], x[1]),
                nvlink_share=(1e6, 1e6),
                network_share=(x[2], x[3]),
                forwarded=True,
                sms=20,
                nvlink_overlaps=True,
            ),
            (1800.0, 900.0, 0.9, 0.9),
        ),
        _fit(
            "pplx-kernels",
            lambda x: Exchange(
                "pplx-kernels",
                fixed_us=(x[0], x[0]),
                nvlink_share=(x[1], x[1]),
                network_fixed_us=(x[2], x[2]),
                network_share=(x[3], x[3]),
                per_message_us=x[4],
                per_peer_us=x[5],
            ),
            (40.0, 0.45, 60.0, 0.55, 8.0, 0.5),
        ),
        *(
            _fit(
                name,
                lambda x, name=name: Exchange(  # type: ignore[misc]
                    name, copies=Copies.RANK, fixed_us=(x[0], x[0]), nvlink_share=(x[1], x[2]), nvlink_overlaps=True
                ),
                (10.0, 0.8, 0.8),
            )
            for name in ("deepep-normal-h200", "put-barrier")
        ),
    ]
    libraries = {library.name: library for library in found}
    return {
        name: replace(library, residual=spread(exchange_residuals(libraries, name)))
        for name, library in libraries.items()
    }


def exchange_residuals(libraries: dict[str, Exchange], library: str = "") -> list[Residual]:
    """Predicted against known for every value (of one library)."""
    rows = []
    for p in EXCHANGE_POINTS:
        if library and p.library != library:
            continue
        what = f"EP{p.ep}, {p.tokens} tokens, {p.direction.value}"
        excluded = "unverified by its publisher's own neighbours" if p.unverified else ""
        rows.append(Residual(p.library, what, p.hardware, p.us, _predict(libraries[p.library], p), p.fit, excluded))
    return rows


def _predict(library: Exchange, point: ExchangePoint) -> float:
    groups = _LIMITED.get(point.library, (1, 1))
    traffic = Traffic(point.tokens, 8, point.ep, _DISPATCH, _COMBINE, groups)
    return exchange_us(library, traffic, hardware(point.hardware), point.direction)[0]


def _fit(name: str, make: Callable[[Sequence[float]], Exchange], start: Sequence[float]) -> Exchange:
    chosen = [p for p in EXCHANGE_POINTS if p.library == name and p.fit]

    def cost(x: Parameters) -> float:
        library = make(np.exp(x).tolist())
        return float(np.sum(np.square([np.log(_predict(library, p) / p.us) for p in chosen])))

    found = np.exp(minimise(cost, np.log(start).tolist()))
    return make([significant(float(value)) for value in found])
