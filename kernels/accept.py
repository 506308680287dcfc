"""Acceptance of drafts: how many in a row equal the target's own draws. One program a request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.tiles import pow2_at_least


@triton.jit
def _accept(drafts_ptr, draws_ptr, out_ptr, k, K_BLOCK: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, K_BLOCK)
    live = slot < k
    draft = tl.load(drafts_ptr + request * k + slot, mask=live, other=0)
    draw = tl.load(draws_ptr + request * (k + 1) + slot, mask=live, other=0)
    first_wrong = tl.min(tl.where(live & (draft != draw), slot, k), axis=0)
    tl.store(out_ptr + request, first_wrong)


def accept(drafts: Tensor, draws: Tensor) -> Tensor:
    """Count each request's accepted drafts.

    Args:
        drafts: int64 [requests, k]; draws: int64 [requests, k + 1], the target's draws at the same positions and one
            more.

    Returns:
        int32 [requests], 0..k.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("drafts", drafts, (None, None))
    requests, k = drafts.shape
    check.shape("draws", draws, (requests, k + 1))
    for name, tensor in (("drafts", drafts), ("draws", draws)):
        check.dtype(name, tensor, torch.int64)
        check.contiguous(name, tensor)
        check.same_device(name, tensor, drafts)
    out = drafts.new_zeros(requests, dtype=torch.int32)
    if drafts.numel():
        _accept[(requests,)](drafts, draws, out, k, K_BLOCK=pow2_at_least(k), num_warps=1)
    return out
