"""FP8 matrix product with block scales whose weights are on their way before its inputs exist (Gluon, GPU only).

As `fp8_gemm_splitk`, the weight is wgmma's left operand and K is split over programs. Here one warp streams weights and
activations through a ring of shared memory, and fills the ring with weights while the kernels before it still run: only
activations wait for them. One to three groups of four warps multiply, each its own 64 output features, so that
one scales its sums while another's product runs. The order of additions depends on (N, K) and the tile alone.
"""

from dataclasses import dataclass

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

FEATURES = 64  # of one wgmma
SCALE_ROWS = 32  # at least as many scales a load: TMA writes to multiples of 128 bytes of shared memory only
COPYING_REGISTERS = 24
LEAST_STAGES = 3  # of a group: one is multiplied, the next is begun, and the last is given back with the one after it
WIDE_ROWS = gl.NVMMASharedLayout(128, 8, 2)  # rows of 128 bytes, swizzled
FLAT = gl.NVMMASharedLayout(0, 32, 2)


@dataclass(frozen=True)
class AheadTile:
    """How one program works: `rows` tokens, `stages` k-steps in flight, `splits` programs along K.

    Its `groups` of four multiplying warps take 64 output features each or, `along_k`, the same 64 and every
    `groups`-th k-step. In a run of `run` k-steps a group's next product runs while it scales the last one; more than
    one needs registers for two. `registers` a thread, averaged over the program's warps; None takes the whole file.
    With `share` the splits of a tile wait for each other and each adds its share of the rows; all programs must fit the
    chip at once, one a multiprocessor. Otherwise the last split to arrive adds them all.
    """

    rows: int
    groups: int = 1
    splits: int = 1
    stages: int = 4
    along_k: bool = False
    registers: int | None = None
    share: bool = False
    run: int = 2

    @property
    def features(self) -> int:
        return FEATURES if self.along_k else self.groups * FEATURES

    @property
    def parts(self) -> int:
        return self.splits * self.groups if self.along_k else self.splits


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
    check_operands(x, x_scale, w, w_scale)
    sharing = 1
    if tile.along_k:  # so that a stage has one group: its barrier's phases are counted modulo two
        sharing = tile.groups
        check.multiple("tile.stages", tile.stages, sharing)
    check.at_least("tile.stages", tile.stages, LEAST_STAGES * sharing)
    (rows, inner), columns = x.shape, w.shape[0]
    parts = tile.parts
    out = x.new_empty((rows, columns), dtype=out_dtype if reduce else torch.float32)
    sums = out[None] if parts == 1 else x.new_empty((parts, rows, columns), dtype=torch.float32)
    if rows == 0:
        return out if reduce else sums
    grid = (triton.cdiv(columns, tile.features), tile.splits, triton.cdiv(rows, tile.rows))
    if tile.share:
        check.at_most("programs that wait for each other", grid[0] * grid[1] * grid[2], sm_count(x.device))
    counted = reduce and parts > 1
    arrived = arrival_counters(triton.cdiv(columns, FEATURES) * grid[2], x.device) if counted else out
    warps = 4 * (tile.groups + 1)
    registers = min(tile.registers or 65536 // (32 * warps), 255) // 8 * 8
    each = min((registers * (tile.groups + 1) - COPYING_REGISTERS) // tile.groups, 255) // 8 * 8
    multiply_ahead[grid](
        descriptor(x, [tile.rows, BLOCK_K], WIDE_ROWS),
        descriptor(x_scale.T, [1, max(tile.rows, SCALE_ROWS)], FLAT),
        descriptor(w, [FEATURES, BLOCK_K], WIDE_ROWS),
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
        SPLITS=tile.splits,
        STAGES=tile.stages,
        REDUCE=reduce,
        ALONG_K=tile.along_k,
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
