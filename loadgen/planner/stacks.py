"""A software stack: which library's curve serves each kernel class, and the two constants of running in a layer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from common.errors import InvalidInput
from loadgen.planner.communication import Copies, Exchange
from loadgen.planner.efficiency import Curve
from loadgen.planner.operations import KernelClass


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything the planner knows about somebody's software.

    Attributes:
        name: how it is asked for.
        about: whose, when.
        curves: efficiency by kernel class; of several, the fastest serves.
        nvlink_exchange: all-to-all when all ranks share one NVLink domain.
        network_exchange: all-to-all of decode otherwise.
        prefill_exchange: all-to-all of prefill, tuned for bandwidth.
        launch_us: gap before each kernel of a captured graph.
        sustained: tensor-core rate in a long run over that of an isolated benchmark (power-limited clocks).
        system_residual: relative error of whole systems beyond that of their kernels, from those published.
    """

    name: str
    about: str
    curves: Mapping[KernelClass, tuple[Curve, ...]]
    nvlink_exchange: Exchange
    network_exchange: Exchange
    prefill_exchange: Exchange
    launch_us: float
    sustained: float
    system_residual: float

    def residual(self, kernel: KernelClass) -> float:
        """Relative standard deviation of this class's times."""
        return self.curves[kernel][0].residual


# Curves that no table was found for. Each is a few microseconds a layer; their uncertainty is set wide.
_ASSUMED = {
    KernelClass.GATE: (Curve(fixed_us=8.0, compute=0.3, residual=0.4),),
    KernelClass.SAMPLING: (Curve(fixed_us=20.0, residual=0.4),),
    KernelClass.COLLECTIVE: (Curve(fixed_us=10.0, memory=0.7, residual=0.3),),
}
_CHOICES: dict[str, dict[str, str]] = {
    "report-2025": {
        "about": "the reference report, April 2025: DeepGEMM, FlashInfer, pplx-kernels",
        "gemm": "deepgemm-2026",
        "mla": "flashinfer-2025",
        "nvlink": "pplx-kernels",
        "network": "pplx-kernels",
        "prefill": "deepep-normal",
    },
    "deepep-2025": {
        "about": "DeepSeek and SGLang, February to May 2025: DeepGEMM, FlashMLA, DeepEP V1",
        "gemm": "deepgemm-2025",
        "mla": "flashmla",
        "nvlink": "deepep-ll-h100",
        "network": "deepep-ll",
        "prefill": "deepep-normal",
    },
    "measured-2026": {
        "about": "kernels measured on our two H200s, DeepEP's published network times",
        "gemm": "deepgemm-2026",
        "mla": "flashinfer-fa3",
        "nvlink": "deepep-ll-h100",
        "network": "deepep-ll-h100",
        "prefill": "deepep-normal",
    },
}
STACKS = tuple(_CHOICES)


def stack(name: str) -> Stack:
    """The stack called `name`, with the committed constants."""
    fitted = committed_constants()
    return build_stack(name, curves_of(fitted), exchanges_of(fitted), fitted["in_layer"], fitted["system_residual"])


def build_stack(
    name: str,
    curves: Mapping[str, Curve],
    exchanges: Mapping[str, Exchange],
    in_layer: Mapping[str, float],
    system_residual: float,
) -> Stack:
    """A stack from fitted parts. `in_layer` holds launch_us and sustained."""
    if name not in _CHOICES:
        raise InvalidInput("stack", name, f"one of {', '.join(STACKS)}")
    choice = _CHOICES[name]
    return Stack(
        name=name,
        about=choice["about"],
        curves={
            KernelClass.GEMM: (curves[choice["gemm"]], curves["small-batch-gemm"]),
            KernelClass.GROUPED_GEMM: (curves["deepgemm-grouped"],),
            # Per-head products have the shape of a grouped GEMM with a short reduction.
            KernelClass.BMM: (replace(curves["deepgemm-grouped"], residual=0.25),),
            KernelClass.MLA_DECODE: (curves[choice["mla"]],),
            KernelClass.PREFILL_ATTENTION: (curves["fa3-prefill"],),
            KernelClass.MEMORY: (curves["elementwise"],),
            **_ASSUMED,
        },
        nvlink_exchange=exchanges[choice["nvlink"]],
        network_exchange=exchanges[choice["network"]],
        prefill_exchange=exchanges[choice["prefill"]],
        launch_us=in_layer["launch_us"],
        sustained=in_layer["sustained"],
        system_residual=system_residual,
    )


@cache
def committed_constants() -> dict[str, Any]:
    """`fitted.json` beside this file, as `tandem plan --fit` wrote it."""
    text = resources.files("loadgen.planner").joinpath("fitted.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def curves_of(fitted: Mapping[str, Any]) -> dict[str, Curve]:
    return {name: Curve(**values) for name, values in fitted["curves"].items()}


def exchanges_of(fitted: Mapping[str, Any]) -> dict[str, Exchange]:
    return {name: _exchange(values) for name, values in fitted["exchanges"].items()}


def _exchange(values: Mapping[str, Any]) -> Exchange:
    pairs = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Exchange(**{**values, **pairs, "copies": Copies(values["copies"])})
