"""The per-head products around absorbed attention in FP8: query absorb with rotation, value projection, quantised.

A head's 128 query channels, each 128 of its attended latent and its 128 values are one scale group, so activations are
quantised as they are loaded and the value projection writes what the output projection reads. The weight is the left
operand of wgmma: few tokens need no padding to 64 rows. Batch-invariant.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check
from kernels.pdl import launch_options, prefetch, release, wait
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import pow2_at_least, scale_buffer


@triton.jit(do_not_specialize=["T"])
def _absorb(
    q_desc, q_ptr, k_desc, k_ptr, ks_ptr, cos_ptr, sin_ptr, positions_ptr, out_ptr, T, R, stride_q, stride_out,
    NOPE: tl.constexpr, PE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head, `BLOCKS` x 128 latent channels and `ROWS` tokens; the programs of channel 0 also rotate."""
    column_tiles = R // (128 * BLOCKS)
    head, r0 = tl.program_id(0) // column_tiles, (tl.program_id(0) % column_tiles) * 128 * BLOCKS
    m0 = tl.program_id(1) * ROWS
    token = m0 + tl.arange(0, ROWS)
    live = token < T
    release(PDL)
    prefetch(k_ptr + (head * R + r0 + tl.arange(0, 128 * BLOCKS)).to(tl.int64) * NOPE, PDL)
    wait(PDL)
    to = out_ptr + token.to(tl.int64)[:, None] * stride_out + head * (R + PE)
    q, scale = quantize_groups(q_desc.load([m0, head * (NOPE + PE)]).to(tl.float32))
    q = q.to(k_ptr.dtype.element_ty)
    for block in tl.range(0, BLOCKS, num_stages=3):
        row = head * R + r0 + block * 128
        part = tl.trans(tl.dot(k_desc.load([row, 0]), q.T)) * (scale * tl.load(ks_ptr + row // 128))[:, None]
        at = r0 + block * 128 + tl.arange(0, 128)[None, :]
        tl.store(to + at, part.to(out_ptr.dtype.element_ty), mask=live[:, None])
    if r0 == 0:
        half = tl.arange(0, PE // 2)
        angle = tl.load(positions_ptr + token, mask=live, other=0)[:, None] * (PE // 2) + half[None, :]
        cos = tl.load(cos_ptr + angle)
        sin = tl.load(sin_ptr + angle)
        pe = q_ptr + token.to(tl.int64)[:, None] * stride_q + head * (NOPE + PE) + NOPE
        even = tl.load(pe + 2 * half[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        odd = tl.load(pe + 2 * half[None, :] + 1, mask=live[:, None], other=0.0).to(tl.float32)
        rotated = tl.interleave(even * cos - odd * sin, even * sin + odd * cos)
        tl.store(to + R + tl.arange(0, PE)[None, :], rotated.to(out_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["T"])
def _project_value(
    x_desc, v_desc, v_ptr, vs_ptr, q_ptr, scale_ptr, T, R, stride_q, stride_scale,
    V: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, m0 = tl.program_id(0), tl.program_id(1) * ROWS
    r_blocks = R // 128
    release(PDL)
    prefetch(v_ptr + (head * V + tl.arange(0, V)[:, None]) * R + tl.arange(0, 4)[None, :] * 128, PDL)
    wait(PDL)
    acc = tl.zeros((V, ROWS), tl.float32)
    for rb in tl.range(0, r_blocks, num_stages=STAGES):
        w = v_desc.load([head * V, rb * 128])
        x, scale = quantize_groups(x_desc.load([m0, head * R + rb * 128]).to(tl.float32))
        acc += tl.dot(w, x.to(w.dtype).T) * (scale * tl.load(vs_ptr + head * r_blocks + rb))[None, :]
    token = m0 + tl.arange(0, ROWS)
    live = token < T
    q, q_scale = quantize_groups(tl.trans(acc))
    to = q_ptr + token.to(tl.int64)[:, None] * stride_q + head * V + tl.arange(0, V)[None, :]
    tl.store(to, q.to(q_ptr.dtype.element_ty), mask=live[:, None])
    tl.store(scale_ptr + head.to(tl.int64) * stride_scale + token, q_scale, mask=live)


def absorb_query(
    q: Tensor, k_b: Tensor, k_scale: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, rows: int | None = None
) -> Tensor:
    """Carry queries into the latent space and rotate their positional part.

    Args:
        q: bf16 [tokens, heads, nope + P]; k_b: e4m3 [heads, R, nope], nope 128, P a power of two, R a multiple of 128;
            k_scale: fp32 [heads, R/128].
        cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].
        rows: tokens a program takes; by default by a table.

    Returns:
        [tokens, heads, R + P] in q's type.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("k_b", k_b, (None, None, None))
    heads, rank, nope = k_b.shape
    pe = 2 * cos.shape[-1]
    check.shape("q", q, (None, heads, nope + pe))
    check.dtype("q", q, torch.bfloat16, torch.float32)
    check.contiguous("q", q)
    check.dtype("k_b", k_b, check.FP8)
    check.contiguous("k_b", k_b)
    check.multiple("k_b.shape[1]", rank, 128)
    check.shape("k_b", k_b, (None, None, 128))
    check.shape("k_scale", k_scale, (heads, rank // 128))
    check.contiguous("k_scale", k_scale)
    check.shape("sin", sin, tuple(cos.shape))
    check.dtype("cos", cos, torch.float32)
    check.shape("positions", positions, (q.shape[0],))
    check.dtype("positions", positions, torch.int64)
    for name, tensor in (("k_b", k_b), ("k_scale", k_scale), ("cos", cos), ("sin", sin), ("positions", positions)):
        check.same_device(name, tensor, q)
    tokens = q.shape[0]
    out = q.new_empty((tokens, heads, rank + pe))
    if tokens:
        rows = rows or min(32, pow2_at_least(tokens, 16))
        blocks = 1 if tokens <= 16 else rank // 128  # few tokens: more programs rather than one quantisation
        _absorb[(heads * rank // (128 * blocks), triton.cdiv(tokens, rows))](
            TensorDescriptor(q.view(tokens, -1), [tokens, heads * (nope + pe)], [q.stride(0), 1], [rows, nope]),
            q,
            TensorDescriptor(k_b.view(-1, nope), [heads * rank, nope], [nope, 1], [128, nope]),
            k_b, k_scale, cos, sin, positions, out, tokens, rank, q.stride(0), out.stride(0),
            NOPE=nope, PE=pe, ROWS=rows, BLOCKS=blocks, num_warps=4, **launch_options(q.device),
        )  # fmt: skip
    return out


def project_value(attended: Tensor, v_b: Tensor, v_scale: Tensor, *, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Bring attended latent back to values and quantise them for the output projection.

    Args:
        attended: bf16 [tokens, heads, R]; v_b: e4m3 [heads, 128, R], R a multiple of 128; v_scale: fp32 [heads, R/128].
        rows: tokens a program takes; by default by a table.

    Returns:
        e4m3 [tokens, heads * 128], fp32 scale [tokens, heads] in `tiles.scale_buffer`'s layout.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("v_b", v_b, (None, 128, None))
    heads, values, rank = v_b.shape
    check.shape("attended", attended, (None, heads, rank))
    check.dtype("attended", attended, torch.bfloat16, torch.float32)
    check.contiguous("attended", attended)
    check.dtype("v_b", v_b, check.FP8)
    check.contiguous("v_b", v_b)
    check.multiple("v_b.shape[2]", rank, 128)
    check.shape("v_scale", v_scale, (heads, rank // 128))
    check.contiguous("v_scale", v_scale)
    for name, tensor in (("v_b", v_b), ("v_scale", v_scale)):
        check.same_device(name, tensor, attended)
    tokens = attended.shape[0]
    q = attended.new_empty((tokens, heads * values), dtype=check.FP8)
    scale = scale_buffer(tokens, heads, attended.device)
    if tokens:
        rows = rows or (16 if tokens <= 32 else 32)
        _project_value[(heads, triton.cdiv(tokens, rows))](
            TensorDescriptor(attended.view(tokens, -1), [tokens, heads * rank], [heads * rank, 1], [rows, 128]),
            TensorDescriptor(v_b.view(-1, rank), [heads * values, rank], [rank, 1], [values, 128]),
            v_b, v_scale, q, scale, tokens, rank, q.stride(0), scale.stride(1),
            V=values, ROWS=rows, STAGES=4, num_warps=4, **launch_options(attended.device),
        )  # fmt: skip
    return q, scale
