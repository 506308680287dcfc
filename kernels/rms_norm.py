"""RMSNorm without quantisation; one program a row, fp32 mean of squares. Batch-invariant."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import begin, launch_options
from kernels.tiles import pow2_at_least


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, eps, stride_x, H, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    live = at < H
    x = tl.load(x_ptr + row * stride_x + at, mask=live, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)
    kind = out_ptr.dtype.element_ty
    weight = tl.load(weight_ptr + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * H + at, (weight * (x * inverse).to(kind).to(tl.float32)).to(kind), mask=live)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise each row of `x` [tokens, hidden] and scale it by `weight` [hidden]; returns x's type.

    Raises:
        KernelArgumentError: wrong shape, stride, type or device.
    """
    check.shape("x", x, (None, None))
    check.dtype("x", x, torch.bfloat16, torch.float16, torch.float32)
    check.shape("weight", weight, (x.shape[1],))
    check.same_device("weight", weight, x)
    check.dense_rows("x", x)
    check.contiguous("weight", weight)
    out = x.new_empty(x.shape)
    if x.numel():
        block = pow2_at_least(x.shape[1])
        warps = 8 if block >= 4096 else 4
        _rms_norm[(x.shape[0],)](
            x, weight, out, eps, x.stride(0), x.shape[1], BLOCK=block, num_warps=warps, **launch_options(x.device)
        )
    return out
