"""Keys and queries of multi-head prefill from the up-projected latent: one pass per token. Batch-invariant."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import begin, launch_options
from kernels.tiles import pow2_at_least

HEADS_AT_ONCE = 64


@triton.jit
def _assemble_heads(
    q_ptr, kv_ptr, k_pe_ptr, cos_ptr, sin_ptr, positions_ptr, k_ptr, stride_kv, stride_k_pe,
    H, NOPE: tl.constexpr, PE: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = (head < H)[:, None]
    width = NOPE + PE
    nope = tl.arange(0, NOPE)
    half = tl.arange(0, PE // 2)
    pe = tl.arange(0, PE)
    keys = tl.load(kv_ptr + token * stride_kv + head[:, None] * (NOPE + V) + nope[None, :], mask=live)
    to = k_ptr + token * H * width + head[:, None] * width
    tl.store(to + nope[None, :], keys, mask=live)
    shared = tl.load(k_pe_ptr + token * stride_k_pe + pe)
    tl.store(to + NOPE + pe[None, :], tl.broadcast_to(shared[None, :], (HEADS, PE)), mask=live)
    turn = tl.load(positions_ptr + token) * (PE // 2) + half
    cos = tl.load(cos_ptr + turn)[None, :]
    sin = tl.load(sin_ptr + turn)[None, :]
    query = q_ptr + token * H * width + head[:, None] * width + NOPE + pe[None, :]
    pairs = tl.load(query, mask=live).to(tl.float32)
    even, odd = tl.split(tl.reshape(pairs, (HEADS, PE // 2, 2)))
    rotated = tl.interleave(even * cos - odd * sin, even * sin + odd * cos)
    tl.debug_barrier()  # every thread has read before any writes in place
    tl.store(query, rotated.to(q_ptr.dtype.element_ty), mask=live)


def assemble_heads(q: Tensor, kv: Tensor, k_pe: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Rotate q's positional part in place and build keys; see `prefill_heads_ref.assemble_heads`.

    Args:
        q: [tokens, heads, nope + P], contiguous; kv: [tokens, heads, nope + V], heads contiguous; k_pe: [tokens, P].
            nope and P are powers of two.

    Returns:
        k [tokens, heads, nope + P].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("q", q, (None, None, None))
    check.contiguous("q", q)
    tokens, heads, width = q.shape
    check.shape("k_pe", k_pe, (tokens, None))
    check.dense_rows("k_pe", k_pe)
    rope = k_pe.shape[1]
    nope = width - rope
    check.multiple("nope", nope, pow2_at_least(nope))
    check.multiple("k_pe.shape[1]", rope, pow2_at_least(rope))
    check.shape("kv", kv, (tokens, heads, None))
    check.contiguous("kv", kv)
    check.shape("cos", cos, (None, rope // 2))
    check.shape("sin", sin, tuple(cos.shape))
    check.shape("positions", positions, (tokens,))
    check.dtype("positions", positions, torch.int64)
    for name, tensor in (("kv", kv), ("k_pe", k_pe)):
        check.dtype(name, tensor, q.dtype)
    for name, tensor in (("kv", kv), ("k_pe", k_pe), ("cos", cos), ("sin", sin), ("positions", positions)):
        check.same_device(name, tensor, q)
    k = torch.empty_like(q)
    if q.numel():
        at_once = min(HEADS_AT_ONCE, pow2_at_least(heads))
        _assemble_heads[(tokens, triton.cdiv(heads, at_once))](
            q, kv, k_pe, cos, sin, positions, k, kv.stride(0), k_pe.stride(0), heads,
            NOPE=nope, PE=rope, V=kv.shape[2] - nope, HEADS=at_once, num_warps=8, **launch_options(q.device),
        )  # fmt: skip
    return k
