"""Latent in and out of the block-major pool, and the step that makes it: norm, rotate, append in one launch.

A pool is [blocks, layers, block_tokens, R + P] with all layers of a block together; kernels see one layer's view
[blocks, block_tokens, R + P] whose block stride passes 2^31 elements early (block 955 of V3), so offsets are 64-bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import begin, launch_options, release, wait
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import pow2_at_least, scale_buffer


@triton.jit
def _query_latent(row, weight_ptr, q_ptr, scale_ptr, eps, stride_part, stride_scale, Q_LORA,
                  SPLITS: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    kind = weight_ptr.dtype.element_ty
    group = tl.arange(0, GROUPS)
    at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    live = at < Q_LORA
    weight = tl.load(weight_ptr + at, mask=live, other=0.0).to(tl.float32)  # no kernel before this one makes it
    wait(PDL)
    x = tl.zeros((GROUPS, 128), tl.float32)
    for s in tl.static_range(SPLITS):
        x += tl.load(row + s * stride_part + at, mask=live, other=0.0).to(tl.float32)
    x = x.to(kind).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / Q_LORA + eps)
    q, scale = quantize_groups((weight * (x * inverse).to(kind).to(tl.float32)).to(kind).to(tl.float32))
    tl.store(q_ptr + at, q.to(q_ptr.dtype.element_ty), mask=live)
    tl.store(scale_ptr + group * stride_scale, scale, mask=group * 128 < Q_LORA)


@triton.jit
def _key_latent(row, weight_ptr, cos_ptr, sin_ptr, to, kept, stored, eps, stride_part, R, HALF,
                SPLITS: tl.constexpr, R_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr, KEEP: tl.constexpr):  # fmt: skip
    kind = weight_ptr.dtype.element_ty
    at = tl.arange(0, R_BLOCK)
    half = tl.arange(0, HALF_BLOCK)
    x = tl.zeros((R_BLOCK,), tl.float32)
    even = tl.zeros((HALF_BLOCK,), tl.float32)
    odd = tl.zeros((HALF_BLOCK,), tl.float32)
    for s in tl.static_range(SPLITS):
        part = row + s * stride_part
        x += tl.load(part + at, mask=at < R, other=0.0).to(tl.float32)
        even += tl.load(part + R + 2 * half, mask=half < HALF, other=0.0).to(tl.float32)
        odd += tl.load(part + R + 2 * half + 1, mask=half < HALF, other=0.0).to(tl.float32)
    x = x.to(kind).to(tl.float32)
    even = even.to(kind).to(tl.float32)
    odd = odd.to(kind).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=0) / R + eps)
    weight = tl.load(weight_ptr + at, mask=at < R, other=0.0).to(tl.float32)
    x = (weight * (x * inverse).to(kind).to(tl.float32)).to(kind)
    cos = tl.load(cos_ptr + half, mask=half < HALF, other=0.0)
    sin = tl.load(sin_ptr + half, mask=half < HALF, other=0.0)
    turned_even = even * cos - odd * sin
    turned_odd = even * sin + odd * cos
    if stored:
        type_ = to.dtype.element_ty
        tl.store(to + at, x.to(type_), mask=at < R)
        tl.store(to + R + 2 * half, turned_even.to(type_), mask=half < HALF)
        tl.store(to + R + 2 * half + 1, turned_odd.to(type_), mask=half < HALF)
    if KEEP:
        tl.store(kept + at, x, mask=at < R)
        tl.store(kept + R + 2 * half, turned_even.to(kind), mask=half < HALF)
        tl.store(kept + R + 2 * half + 1, turned_odd.to(kind), mask=half < HALF)


@triton.jit
def _split_qkv_a(
    qkv_ptr, q_norm_ptr, kv_norm_ptr, cos_ptr, sin_ptr, positions_ptr, cache_ptr, slots_ptr, q_ptr, scale_ptr,
    kept_ptr, eps, stride_part, stride_row, stride_block, stride_token, block_tokens,
    stride_scale, Q_LORA, R, HALF,
    SPLITS: tl.constexpr, GROUPS: tl.constexpr, R_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
    KEEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    row = qkv_ptr + token * stride_row
    if tl.program_id(1) == 0:
        q_row = q_ptr + token * Q_LORA
        _query_latent(
            row, q_norm_ptr, q_row, scale_ptr + token, eps, stride_part, stride_scale, Q_LORA, SPLITS, GROUPS, PDL
        )
    else:
        wait(PDL)
        slot = tl.load(slots_ptr + token)
        to = cache_ptr + (slot // block_tokens) * stride_block + (slot % block_tokens) * stride_token
        turn = tl.load(positions_ptr + token) * HALF
        kept = kept_ptr + token * (R + 2 * HALF)
        _key_latent(row + Q_LORA, kv_norm_ptr, cos_ptr + turn, sin_ptr + turn, to, kept, slot >= 0, eps,
                    stride_part, R, HALF, SPLITS, R_BLOCK, HALF_BLOCK, KEEP)  # fmt: skip


@triton.jit
def _append(latent_ptr, cache_ptr, slots_ptr, stride_latent, stride_block, stride_token, block_tokens, WIDTH,
            BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        at = tl.arange(0, BLOCK)
        value = tl.load(latent_ptr + token * stride_latent + at, mask=at < WIDTH, other=0.0)
        to = cache_ptr + (slot // block_tokens) * stride_block + (slot % block_tokens) * stride_token
        tl.store(to + at, value.to(cache_ptr.dtype.element_ty), mask=at < WIDTH)


@triton.jit(do_not_specialize=["start"])
def _gather(cache_ptr, table_ptr, out_ptr, start, stride_block, stride_token, block_tokens, WIDTH,
            BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    place = start + token
    block = tl.load(table_ptr + place // block_tokens).to(tl.int64)
    at = tl.arange(0, BLOCK)
    source = cache_ptr + block * stride_block + (place % block_tokens) * stride_token
    tl.store(out_ptr + token * WIDTH + at, tl.load(source + at, mask=at < WIDTH, other=0.0), mask=at < WIDTH)


def split_qkv_a(
    qkv: Tensor,
    q_norm: Tensor,
    kv_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slots: Tensor,
    latent: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finish the first projection: norm and quantise q's latent; norm and rotate the key's and store it.

    Args:
        qkv: [tokens, q_lora + R + P] in the norms' type, or partial sums fp32 [splits, tokens, ...].
        q_norm: [q_lora]; kv_norm: [R]; cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].
        cache: [blocks, block_tokens, R + P], any block stride; slots: int64 [tokens], -1 stores nothing.
        latent: [tokens, R + P], written as well where a prefill goes on to up-project it.

    Returns:
        q's latent e4m3 [tokens, q_lora] and its scale fp32 [tokens, ceil(q_lora/128)].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_cache(cache)
    q_lora, rank, width = q_norm.shape[0], kv_norm.shape[0], cache.shape[2]
    half = (width - rank) // 2
    if qkv.dim() == 3:
        check.dtype("qkv", qkv, torch.float32)
    tokens = qkv.shape[-2]
    check.shape("qkv", qkv, (*qkv.shape[:-2], tokens, q_lora + width))
    check.dense_rows("qkv", qkv)
    check.shape("cos", cos, (None, half))
    check.shape("sin", sin, tuple(cos.shape))
    for name, tensor in (("cos", cos), ("sin", sin)):
        check.dtype(name, tensor, torch.float32)
        check.contiguous(name, tensor)
    for name, tensor in (("positions", positions), ("slots", slots)):
        check.shape(name, tensor, (tokens,))
        check.dtype(name, tensor, torch.int64)
    for name, tensor in (("q_norm", q_norm), ("kv_norm", kv_norm), ("cos", cos), ("cache", cache), ("slots", slots)):
        check.same_device(name, tensor, qkv)
    if latent is not None:
        check.shape("latent", latent, (tokens, width))
        check.dtype("latent", latent, q_norm.dtype)
        check.contiguous("latent", latent)
    q = qkv.new_empty((tokens, q_lora), dtype=check.FP8)
    scale = scale_buffer(tokens, -(-q_lora // 128), qkv.device)
    if tokens:
        _split_qkv_a[(tokens, 2)](
            qkv, q_norm, kv_norm, cos, sin, positions, cache, slots, q, scale,
            cache if latent is None else latent, eps, qkv.stride(0), qkv.stride(-2), cache.stride(0), cache.stride(1),
            cache.shape[1], scale.stride(1),
            q_lora, rank, half,
            SPLITS=qkv.shape[0] if qkv.dim() == 3 else 1, GROUPS=pow2_at_least(-(-q_lora // 128)),
            R_BLOCK=pow2_at_least(rank), HALF_BLOCK=pow2_at_least(half), KEEP=latent is not None,
            num_warps=4, **launch_options(qkv.device),
        )  # fmt: skip
    return q, scale


def append_latent(cache: Tensor, latent: Tensor, slots: Tensor) -> None:
    """Store `latent` [tokens, R + P] at `slots` int64 [tokens] (block * block_tokens + offset); -1 stores nothing.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_cache(cache)
    check.shape("latent", latent, (None, cache.shape[2]))
    check.dense_rows("latent", latent)
    check.shape("slots", slots, (latent.shape[0],))
    check.dtype("slots", slots, torch.int64)
    check.same_device("latent", latent, cache)
    check.same_device("slots", slots, cache)
    if latent.shape[0]:
        _append[(latent.shape[0],)](
            latent, cache, slots, latent.stride(0), cache.stride(0), cache.stride(1), cache.shape[1], cache.shape[2],
            BLOCK=pow2_at_least(cache.shape[2]), num_warps=2, **launch_options(cache.device),
        )  # fmt: skip


def gather_latent(cache: Tensor, block_table: Tensor, start: int, stop: int) -> Tensor:
    """Tokens `start..stop` of the request whose blocks are `block_table` int32 [max_blocks]: [stop - start, R + P].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check_cache(cache)
    check.shape("block_table", block_table, (None,))
    check.dtype("block_table", block_table, torch.int32)
    check.contiguous("block_table", block_table)
    check.same_device("block_table", block_table, cache)
    check.at_most("stop", stop, block_table.shape[0] * cache.shape[1])
    out = cache.new_empty((max(stop - start, 0), cache.shape[2]))
    if out.shape[0]:
        _gather[(out.shape[0],)](
            cache, block_table, out, start, cache.stride(0), cache.stride(1), cache.shape[1], cache.shape[2],
            BLOCK=pow2_at_least(cache.shape[2]), num_warps=2, **launch_options(cache.device),
        )  # fmt: skip
    return out


def check_cache(cache: Tensor) -> None:
    """One layer's view of a pool."""
    check.shape("cache", cache, (None, None, None))
    check.dtype("cache", cache, torch.bfloat16, torch.float16, torch.float32)
    check.dense_rows("cache", cache)
