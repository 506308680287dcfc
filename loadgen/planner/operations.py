"""One kernel's work: FLOPs, bytes and the shape that decides how well it runs."""

from dataclasses import dataclass
from enum import StrEnum

TILE = 128


class KernelClass(StrEnum):
    """Kernels that share one efficiency curve."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped gemm"
    BMM = "bmm"
    MLA_DECODE = "mla decode"
    PREFILL_ATTENTION = "prefill attention"
    MEMORY = "norm, quantise, activate"
    GATE = "gate"
    SAMPLING = "sampling"
    COLLECTIVE = "tensor-parallel collective"


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel launch on one rank.

    Attributes:
        stage: 1 to 5 as in the report; 0 outside a layer.
        flops: useful FLOPs.
        bytes: memory traffic if every operand moves once.
        padded_flops: FLOPs that the tiles really do, at least `flops`.
        depth: reduction length K of a matrix product, or 0.
        tiles: 128 x 128 output tiles, a measure of waves over the multiprocessors.
        length: twice the mean number of attended keys (the sequence length, for a causal prompt without a prefix).
        link_bytes: bytes over NVLink (collectives only).
    """

    name: str
    stage: int
    kernel: KernelClass
    precision: str
    flops: float
    bytes: float
    padded_flops: float = 0.0
    depth: float = 0.0
    tiles: float = 0.0
    length: float = 0.0
    link_bytes: float = 0.0


def tile_rows(rows: float) -> float:
    """Rows a tiled kernel computes for `rows` rows known exactly: whole tiles of 64, then of 128."""
    if rows <= 0:
        return 0.0
    if rows <= TILE / 2:
        return TILE / 2
    return -(-rows // TILE) * TILE


def routed_tile_rows(rows: float) -> float:
    """The same when routing draws the count of each expert: half a tile more on average, never less than one."""
    return max(rows + TILE / 2, TILE / 2) if rows > 0 else 0.0


def gemm(
    name: str, stage: int, rows: float, out: float, depth: float, weight_bytes: float, precision: str = "fp8"
) -> Operation:
    """[rows, depth] x [depth, out] -> bf16 [rows, out]; the report's 2mkn FLOPs over mk + nk + 2mn bytes in FP8."""
    width = 1 if precision == "fp8" else 2
    padded = tile_rows(rows)
    return Operation(
        name,
        stage,
        KernelClass.GEMM,
        precision,
        flops=2 * rows * out * depth,
        bytes=rows * depth * width + weight_bytes + rows * out * 2,
        padded_flops=2 * padded * out * depth,
        depth=depth,
        tiles=padded / TILE * out / TILE,
    )


def grouped_gemm(
    name: str,
    stage: int,
    groups: float,
    rows: float,
    out: float,
    depth: float,
    weight_bytes: float,
    precision: str = "fp8",
    *,
    routed: bool = True,
    kernel: KernelClass = KernelClass.GROUPED_GEMM,
) -> Operation:
    """`groups` products [rows, depth] x [depth, out], each with `weight_bytes` of weights.

    `routed` says that `rows` is the mean of random counts; otherwise every group has exactly that many.
    """
    width = 1 if precision == "fp8" else 2
    padded = routed_tile_rows(rows) if routed else tile_rows(rows)
    return Operation(
        name,
        stage,
        kernel,
        precision,
        flops=2 * groups * rows * out * depth,
        bytes=groups * (rows * depth * width + weight_bytes + rows * out * 2),
        padded_flops=2 * groups * padded * out * depth,
        depth=depth,
        tiles=groups * padded / TILE * out / TILE,
    )


def elementwise(name: str, stage: int, moved_bytes: float) -> Operation:
    """A norm, a quantisation, an activation: bytes alone."""
    return Operation(name, stage, KernelClass.MEMORY, "bf16", flops=0.0, bytes=moved_bytes)


def collective(name: str, stage: int, link_bytes: float) -> Operation:
    """A reduce-scatter or all-gather inside a tensor-parallel group over NVLink."""
    return Operation(
        name, stage, KernelClass.COLLECTIVE, "bf16", flops=0.0, bytes=2 * link_bytes, link_bytes=link_bytes
    )
