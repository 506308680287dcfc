"""FP8 matrix product with block scales whose weights are on their way before its inputs exist (Gluon, GPU only).

As `fp8_gemm_splitk`, K is split over programs and, mostly, the weight is wgmma's left operand. Here one warp streams
weights through a ring of shared memory, and fills it while the kernels before still run; another streams activations,
once they are there. One to three groups of four warps multiply, so that one scales its sums while another's product
runs. The order of additions depends on (N, K) and the tile alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import check
from kernels.arrival import arrival_counters
from kernels.fp8_gemm_splitk import check_operands
from kernels.pdl import launch_options
from kernels.tiles import BLOCK_K, sm_count
from kernels.weight_ring import multiply_ahead

FEATURES = 64  # of one wgmma, or tokens where they are its left operand
SCALE_ROWS = 32  # at least as many scales a load: TMA writes to multiples of 128 bytes of shared memory only
COPYING_REGISTERS = 24
LEAST_STAGES = 3  # of a group: one is multiplied, the next is begun, and the last is given back with the one after it
WIDE_ROWS = gl.NVMMASharedLayout(128, 8, 2)  # rows of 128 bytes, swizzled
FLAT = gl.NVMMASharedLayout(0, 32, 2)


@dataclass(frozen=True)
class AheadTile:
    """How one program works: `rows` tokens, `stages` k-steps in flight, `splits` programs along K.

    Its `groups` of four multiplying warps share out, `along` features, 64 of them each; or along K, the same 64
    features and every `groups`-th k-step, and add up; or along tokens, 64 each and the same 128 features, where tokens
    are wgmma's left operand. In a run of `run` k-steps a group's next product runs while it scales the last one; more
    than one needs registers for two. `registers` a thread, averaged over the program's warps; None takes all there are.

    With `ahead` no more than so many k-steps of weights are under way at once: kernels that still run, and then the
    tokens, find memory less busy. With `share` the splits of a tile wait for each other and each adds its share of the
    rows; all programs must fit the chip at once, one a multiprocessor, so two products that share must not run at once
    either: an event orders them where they are on two streams. Otherwise the last to arrive adds them all.

    Raises:
        KernelArgumentError: the ring could not turn, or is too small for the sums.
    """

    rows: int
    groups: int = 1
    splits: int = 1
    stages: int = 4
    along: Literal["features", "k", "tokens"] = "features"
    registers: int | None = None
    share: bool = False
    run: int = 2
    ahead: int = 0

    def __post_init__(self) -> None:
        along_k = self.groups if self.along == "k" else 1
        check.multiple("rows", self.rows, along_k)
        if self.along == "tokens":
            check.one_of("rows", self.rows, [self.groups * FEATURES])
        check.multiple("stages", self.stages, along_k)  # so that a stage has one group: phases are counted modulo two
        check.at_least("stages", self.stages, LEAST_STAGES * along_k)
        check.at_most("ahead", self.ahead, self.stages - 2 * along_k)
        ring = self.stages * self.features * BLOCK_K
        check.at_most("bytes of sums", self.groups * self.block * self.chunk * 4, ring)

    @property
    def chunk(self) -> int:
        """Features of a copy of weights, and of a group."""
        return 2 * FEATURES if self.along == "tokens" else FEATURES

    @property
    def features(self) -> int:
        return self.groups * FEATURES if self.along == "features" else self.chunk

    @property
    def block(self) -> int:
        """Tokens of a copy, and of a group."""
        return FEATURES if self.along == "tokens" else self.rows


def fp8_gemm_ahead(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    tile: AheadTile,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    reduce: bool = True,
) -> Tensor:
    """As `fp8_gemm_splitk.fp8_gemm_splitk`, with `tile`.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.on_gpu("x", x)
    check_operands(x, x_scale, w, w_scale)
    (rows, inner), columns = x.shape, w.shape[0]
    out = x.new_empty((rows, columns), dtype=out_dtype if reduce else torch.float32)
    sums = out[None] if tile.splits == 1 else x.new_empty((tile.splits, rows, columns), dtype=torch.float32)
    if rows == 0:
        return out if reduce else sums
    grid = (triton.cdiv(columns, tile.features), tile.splits, triton.cdiv(rows, tile.rows))
    if tile.share:
        check.at_most("programs that wait for each other", grid[0] * grid[1] * grid[2], sm_count(x.device))
    counted = reduce and tile.splits > 1
    slots = triton.cdiv(columns, tile.chunk) * grid[2] * (1 if tile.along == "features" else tile.groups)
    arrived = arrival_counters(slots, x.device) if counted else out
    warps = 4 * (tile.groups + 1)
    registers = min(tile.registers or 65536 // (32 * warps), 255) // 8 * 8
    each = min((registers * (tile.groups + 1) - COPYING_REGISTERS) // tile.groups, 255) // 8 * 8
    multiply_ahead[grid](
        descriptor(x, [tile.block, BLOCK_K], WIDE_ROWS),
        descriptor(x_scale.T, [1, max(tile.rows, SCALE_ROWS)], FLAT),
        descriptor(w, [tile.chunk, BLOCK_K], WIDE_ROWS),
        w_scale,
        out,
        sums,
        arrived,
        rows,
        columns,
        inner,
        w_scale.stride(0),
        ROWS=tile.rows,
        GROUPS=tile.groups,
        ALONG=tile.along,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        AHEAD=tile.ahead,
        REDUCE=reduce,
        SHARE=tile.share,
        RUN=tile.run,
        REGISTERS=each,
        num_warps=4,
        maxnreg=registers,
        launch_pdl=launch_options(x.device)["launch_pdl"],
    )
    return out if reduce else sums


def descriptor(tensor: Tensor, block: list[int], layout: gl.NVMMASharedLayout) -> TensorDescriptor:
    """TMA's view of a matrix."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)
