"""Published and measured all-to-all times, and which of them the fit may see.

Split: in each table the values marked, at most half; a row that its own publisher's neighbours contradict is
unverified and in neither half. Every row is hidden 7168, top-8 of 256, FP8 out, bf16 back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from loadgen.planner.communication import Direction
from loadgen.planner.figure import OUR_H200, Kind


class Use(StrEnum):
    """Which values of a row (dispatch, combine) the fit sees; the others are only compared with."""

    BOTH = "both"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    NEITHER = "neither"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class ExchangePoint:
    """One direction of one table row: `tokens` a rank over `ep` ranks took `us`."""

    library: str
    hardware: str
    ep: int
    tokens: int
    direction: Direction
    us: float
    kind: Kind
    source: str
    fit: bool
    unverified: bool = False


_Row = tuple[int, int, float, float, Use]


def _table(library: str, gpu: str, kind: Kind, source: str, rows: Iterable[_Row]) -> list[ExchangePoint]:
    points = []
    for ep, tokens, out, back, use in rows:
        for direction, us in ((Direction.DISPATCH, out), (Direction.COMBINE, back)):
            fit = use is Use.BOTH or use.value == direction.value
            unverified = use is Use.UNVERIFIED
            points.append(ExchangePoint(library, gpu, ep, tokens, direction, us, kind, source, fit, unverified))
    return points


_PUBLISHED = Kind.PUBLISHED
# DeepEP's normal table gives "logical" bandwidths: 4,096 tokens times the ranks (EP8) or nodes they reach under
# group-limited routing (top 4 of 8 groups), over time. (ep, places reached, dispatch GB/s, combine GB/s, fit)
_NORMAL = (
    (8, 4.0, 153, 158, Use.NEITHER),
    (16, 2 * (1 - 1 / 70), 43, 43, Use.BOTH),
    (32, 4 * (1 - 15 / 70), 58, 57, Use.NEITHER),
    (64, 4.0, 51, 50, Use.BOTH),
)


def _logical_us(gb_per_s: float, copy_bytes: int, places: float) -> float:
    return 4096 * places * copy_bytes / (gb_per_s * 1e3)


EXCHANGE_POINTS: list[ExchangePoint] = [
    *_table(
        "deepep-ll",
        "h800",
        _PUBLISHED,
        "DeepEP docs/legacy.md, low latency",
        (
            (8, 128, 77, 114, Use.BOTH),
            (16, 128, 118, 195, Use.NEITHER),
            (32, 128, 155, 273, Use.BOTH),
            (64, 128, 173, 314, Use.NEITHER),
            (128, 128, 192, 369, Use.BOTH),
            (256, 128, 194, 360, Use.NEITHER),
        ),
    ),
    *_table(
        "deepep-ll-h100",
        "h100",
        _PUBLISHED,
        "pplx-garden docs/fabric-lib.md, DeepEP over CX7",
        (
            (8, 128, 42.6, 72.0, Use.BOTH),
            (16, 128, 123.9, 203.0, Use.BOTH),
            (32, 128, 159.1, 285.0, Use.NEITHER),
            (64, 128, 177.9, 325.0, Use.NEITHER),
        ),
    ),
    *_table(
        "pplx-garden",
        "h100",
        _PUBLISHED,
        "pplx-garden docs/fabric-lib.md, CX7",
        (
            (8, 128, 50.5, 65.3, Use.BOTH),
            (16, 128, 110.2, 185.5, Use.BOTH),
            (32, 128, 153.9, 266.3, Use.NEITHER),
            (64, 128, 187.5, 309.1, Use.BOTH),
            (8, 4096, 5071, 1405, Use.UNVERIFIED),
            (16, 4096, 2735, 1062, Use.UNVERIFIED),
            (32, 4096, 4012, 7527, Use.NEITHER),
            (64, 4096, 4665, 8771, Use.NEITHER),
        ),
    ),
    *_table(
        "deepep-normal-h100",
        "h100",
        _PUBLISHED,
        "pplx-garden docs/fabric-lib.md, DeepEP over CX7",
        (
            (8, 4096, 1810, 963, Use.BOTH),
            (16, 4096, 2482, 1864, Use.NEITHER),
            (32, 4096, 3680, 3565, Use.NEITHER),
            (64, 4096, 5072, 5923, Use.BOTH),
        ),
    ),
    *_table(
        "pplx-kernels",
        "h100",
        _PUBLISHED,
        "pplx-kernels README, NVLink and IBGDA",
        (
            (8, 1, 41.6, 41.7, Use.COMBINE),
            (8, 128, 83.6, 102.3, Use.COMBINE),
            (16, 128, 622, 668, Use.DISPATCH),
            (32, 128, 428, 481, Use.NEITHER),
            (64, 128, 317, 530, Use.NEITHER),
            (128, 128, 308, 594, Use.NEITHER),
            (128, 1, 126, 63, Use.BOTH),
        ),
    ),
    *_table(
        "pplx-kernels",
        "h100",
        _PUBLISHED,
        "the reference report, EP128 without overlap",
        ((128, 256, 593, 1012, Use.BOTH),),
    ),
    *_table(
        "deepep-normal-h200",
        "h200",
        Kind.MEASURED,
        f"{OUR_H200}, DeepEP V1 at 128 SMs",
        (
            (2, 128, 29.1, 33.9, Use.BOTH),
            (2, 256, 32.3, 38.9, Use.NEITHER),
            (2, 1024, 57.3, 82.7, Use.NEITHER),
            (2, 4096, 131, 215, Use.BOTH),
        ),
    ),
    *_table(
        "put-barrier",
        "h200",
        Kind.MEASURED,
        f"{OUR_H200}, bare Triton put and barrier",
        (
            (2, 128, 7.0, 9.5, Use.BOTH),
            (2, 256, 9.7, 14.5, Use.NEITHER),
            (2, 1024, 25, 45, Use.NEITHER),
            (2, 4096, 88, 167, Use.BOTH),
        ),
    ),
    *_table(
        "deepep-normal",
        "h800",
        _PUBLISHED,
        "DeepEP docs/legacy.md, normal kernels, logical bandwidth",
        tuple(
            (ep, 4096, _logical_us(out, 7168 + 224, places), _logical_us(back, 14336, places), fit)
            for ep, places, out, back, fit in _NORMAL
        ),
    ),
]
