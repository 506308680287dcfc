"""The per-head products around absorbed attention in FP8: query absorb with rotation, value projection, quantised.

A head's 128 query channels, each 128 of its attended latent and its 128 values are one scale group, so activations are
quantised as they are loaded and the value projection writes what the output projection reads. The weight is the left
operand of wgmma where tokens are few: they need no padding to 64 rows then. Weights are loaded before the inputs exist.
Batch-invariant within one row of the tile tables.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check
from kernels.pdl import launch_options, prefetch, release, settle, wait
from kernels.quant_fp8 import quantize_groups
from kernels.tiles import scale_buffer

RANKS = (128, 256, 512)


@dataclass(frozen=True)
class HeadTile:
    """How one program works: `loop` times `rows` tokens of one head, `blocks` x 128 latent channels in shared memory.

    `tokens_left` makes the tokens the left operand of wgmma, which pads them to 64; else it is the weight.
    """

    rows: int
    blocks: int
    loop: int = 1
    tokens_left: bool = False
    warps: int = 4


@triton.jit
def rotate_rows(q_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, token, live, stride_q, stride_out, PE: tl.constexpr):
    half = tl.arange(0, PE // 2)
    lane = tl.arange(0, PE)[None, :]
    angle = tl.load(positions_ptr + token, mask=live, other=0)[:, None] * (PE // 2) + half[None, :]
    pe = tl.load(q_ptr + token.to(tl.int64)[:, None] * stride_q + lane, mask=live[:, None], other=0.0)
    cos = tl.load(cos_ptr + angle)
    sin = tl.load(sin_ptr + angle)
    even, odd = tl.split(tl.reshape(pe.to(tl.float32), (pe.shape[0], PE // 2, 2)))
    rotated = tl.interleave(even * cos - odd * sin, even * sin + odd * cos)
    to = out_ptr + token.to(tl.int64)[:, None] * stride_out + lane
    tl.store(to, rotated.to(out_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def _product(x, scale, w, LEFT: tl.constexpr):
    """Tokens by a weight block [128, 128], as [tokens, 128] in fp32."""
    if LEFT:
        out = tl.dot(x, w.T)
    else:
        out = tl.trans(tl.dot(w, x.T))
    return out * scale[:, None]


@triton.jit(do_not_specialize=["T"])
def _absorb(
    q_desc, q_ptr, k_desc, ks_ptr, cos_ptr, sin_ptr, positions_ptr, out_desc, out_ptr, T, R, stride_q, stride_out,
    NOPE: tl.constexpr, PE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, LOOP: tl.constexpr,
    LEFT: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head and a piece of its latent channels; the piece after the last is the rotation."""
    pieces = R // (128 * BLOCKS)
    head, piece = tl.program_id(0) // (pieces + 1), tl.program_id(0) % (pieces + 1)
    column = head * (NOPE + PE)
    if EARLY:
        release(PDL)
    if piece < pieces:
        row = head * R + piece * 128 * BLOCKS
        to = head * (R + PE) + piece * 128 * BLOCKS
        # Weights wait for no earlier kernel.
        w0 = k_desc.load([row, 0])
        if BLOCKS > 1:
            w1 = k_desc.load([row + 128, 0])
        if BLOCKS > 2:
            w2 = k_desc.load([row + 256, 0])
            w3 = k_desc.load([row + 384, 0])
        wait(PDL)
        for i in tl.range(0, LOOP):
            m0 = (tl.program_id(1) * LOOP + i) * ROWS
            q, scale = quantize_groups(q_desc.load([m0, column]).to(tl.float32))
            q = q.to(w0.dtype)
            ks = ks_ptr + row // 128
            kind = out_ptr.dtype.element_ty
            out_desc.store([m0, to], _product(q, scale * tl.load(ks), w0, LEFT).to(kind))
            if BLOCKS > 1:
                out_desc.store([m0, to + 128], _product(q, scale * tl.load(ks + 1), w1, LEFT).to(kind))
            if BLOCKS > 2:
                out_desc.store([m0, to + 256], _product(q, scale * tl.load(ks + 2), w2, LEFT).to(kind))
                out_desc.store([m0, to + 384], _product(q, scale * tl.load(ks + 3), w3, LEFT).to(kind))
    else:
        wait(PDL)
        for i in tl.range(0, LOOP):
            token = (tl.program_id(1) * LOOP + i) * ROWS + tl.arange(0, ROWS)
            rotate_rows(
                q_ptr + column + NOPE, out_ptr + head * (R + PE) + R, cos_ptr, sin_ptr, positions_ptr, token,
                token < T, stride_q, stride_out, PE,
            )  # fmt: skip
    if not EARLY:
        settle(PDL)


@triton.jit
def _store_values(acc, q_ptr, scale_ptr, head, token, live, stride_q, stride_scale, V: tl.constexpr):
    q, scale = quantize_groups(acc)
    to = q_ptr + token.to(tl.int64)[:, None] * stride_q + head * V + tl.arange(0, V)[None, :]
    tl.store(to, q.to(q_ptr.dtype.element_ty), mask=live[:, None])
    tl.store(scale_ptr + head.to(tl.int64) * stride_scale + token, scale, mask=live)


@triton.jit(do_not_specialize=["T"])
def _project_value(
    x_ptr, v_desc, vs_ptr, q_ptr, scale_ptr, T, R, stride_x, stride_q, stride_scale,
    V: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, LEFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head; all of its weight is in shared memory before the inputs exist."""
    head = tl.program_id(0)
    release(PDL)
    w0 = v_desc.load([head * V, 0])
    if BLOCKS > 1:
        w1 = v_desc.load([head * V, 128])
    if BLOCKS > 2:
        w2 = v_desc.load([head * V, 256])
        w3 = v_desc.load([head * V, 384])
    wait(PDL)
    vs = vs_ptr + head * BLOCKS
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = token < T
    source = x_ptr + token.to(tl.int64)[:, None] * stride_x + head * R + tl.arange(0, 128)[None, :]
    # All loads are on their way before the first is used.
    x0 = tl.load(source, mask=live[:, None], other=0.0)
    if BLOCKS > 1:
        x1 = tl.load(source + 128, mask=live[:, None], other=0.0)
    if BLOCKS > 2:
        x2 = tl.load(source + 256, mask=live[:, None], other=0.0)
        x3 = tl.load(source + 384, mask=live[:, None], other=0.0)
    q, scale = quantize_groups(x0.to(tl.float32))
    acc = _product(q.to(w0.dtype), scale * tl.load(vs), w0, LEFT)
    if BLOCKS > 1:
        q, scale = quantize_groups(x1.to(tl.float32))
        acc += _product(q.to(w0.dtype), scale * tl.load(vs + 1), w1, LEFT)
    if BLOCKS > 2:
        q, scale = quantize_groups(x2.to(tl.float32))
        acc += _product(q.to(w0.dtype), scale * tl.load(vs + 2), w2, LEFT)
        q, scale = quantize_groups(x3.to(tl.float32))
        acc += _product(q.to(w0.dtype), scale * tl.load(vs + 3), w3, LEFT)
    _store_values(acc, q_ptr, scale_ptr, head, token, live, stride_q, stride_scale, V)


@triton.jit(do_not_specialize=["T"])
def _project_value_streamed(
    x_desc, v_desc, v_ptr, vs_ptr, q_ptr, scale_ptr, T, R, stride_q, stride_scale,
    V: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Block after block: with many tokens two programs a multiprocessor are worth more than an early weight."""
    head, m0 = tl.program_id(0), tl.program_id(1) * ROWS
    release(PDL)
    row = (head * V + tl.arange(0, V))[:, None]
    prefetch(v_ptr + row * R + tl.arange(0, BLOCKS)[None, :] * 128, PDL)
    wait(PDL)
    acc = tl.zeros((ROWS, V), tl.float32)
    for block in tl.range(0, BLOCKS, num_stages=STAGES):
        w = v_desc.load([head * V, block * 128])
        x, scale = quantize_groups(x_desc.load([m0, head * R + block * 128]).to(tl.float32))
        acc += _product(x.to(w.dtype), scale * tl.load(vs_ptr + head * BLOCKS + block), w, True)
    token = m0 + tl.arange(0, ROWS)
    _store_values(acc, q_ptr, scale_ptr, head, token, token < T, stride_q, stride_scale, V)


MANY = float("inf")
# Tiles by the most tokens.
ABSORB_TILES: tuple[tuple[float, HeadTile], ...] = (
    (32, HeadTile(16, 2)),
    (64, HeadTile(32, 1, loop=2)),
    (128, HeadTile(32, 1, loop=4)),
    (MANY, HeadTile(64, 2, tokens_left=True)),
)
VALUE_TILES: tuple[tuple[float, HeadTile], ...] = (
    (32, HeadTile(16, 4)),
    (64, HeadTile(64, 4, tokens_left=True, warps=8)),
    (MANY, HeadTile(64, 1, tokens_left=True)),
)
VALUE_STAGES = 3  # blocks in flight where the weight is streamed


def pick_head_tile(table: tuple[tuple[float, HeadTile], ...], tokens: int) -> HeadTile:
    """The measured tile for a number of tokens."""
    return next(tile for limit, tile in table if tokens <= limit)


def absorb_query(
    q: Tensor,
    k_b: Tensor,
    k_scale: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    *,
    early: bool = False,
    tile: HeadTile | None = None,
) -> Tensor:
    """Carry queries into the latent space and rotate their positional part.

    Args:
        q: bf16 [tokens, heads, nope + P]; k_b: e4m3 [heads, R, nope], nope 128, P a power of two, R 128, 256 or 512;
            k_scale: fp32 [heads, R/128].
        cos, sin: fp32 [max positions, P/2]; positions: int64 [tokens].
        early: what follows waits for this kernel, so that it may start early. FlashMLA's kernels start early where they
            may and wait for nothing: before them every store is performed before the end.
        tile: by default by a table.

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
    check.one_of("k_b.shape[1]", rank, RANKS)
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
        tile = tile or pick_head_tile(ABSORB_TILES, tokens)
        blocks = min(tile.blocks, rank // 128)
        width = heads * (rank + pe)
        _absorb[(heads * (rank // (128 * blocks) + 1), triton.cdiv(tokens, tile.rows * tile.loop))](
            TensorDescriptor(q.view(tokens, -1), [tokens, heads * (nope + pe)], [q.stride(0), 1], [tile.rows, nope]),
            q,
            TensorDescriptor(k_b.view(-1, nope), [heads * rank, nope], [nope, 1], [128, nope]),
            k_scale, cos, sin, positions,
            TensorDescriptor(out.view(tokens, width), [tokens, width], [width, 1], [tile.rows, 128]),
            out, tokens, rank, q.stride(0), width,
            NOPE=nope, PE=pe, ROWS=tile.rows, BLOCKS=blocks, LOOP=tile.loop, LEFT=tile.tokens_left, EARLY=early,
            num_warps=tile.warps, **launch_options(q.device),
        )  # fmt: skip
    return out


def project_value(
    attended: Tensor, v_b: Tensor, v_scale: Tensor, *, tile: HeadTile | None = None
) -> tuple[Tensor, Tensor]:
    """Bring attended latent back to values and quantise them for the output projection.

    Args:
        attended: bf16 [tokens, heads, R]; v_b: e4m3 [heads, 128, R], R 128, 256 or 512; v_scale: fp32 [heads, R/128].
        tile: by default by a table.

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
    check.one_of("v_b.shape[2]", rank, RANKS)
    check.shape("v_scale", v_scale, (heads, rank // 128))
    check.contiguous("v_scale", v_scale)
    for name, tensor in (("v_b", v_b), ("v_scale", v_scale)):
        check.same_device(name, tensor, attended)
    tokens = attended.shape[0]
    q = attended.new_empty((tokens, heads * values), dtype=check.FP8)
    scale = scale_buffer(tokens, heads, attended.device)
    if tokens:
        tile = tile or pick_head_tile(VALUE_TILES, tokens)
        grid, blocks, width = (heads, triton.cdiv(tokens, tile.rows)), rank // 128, heads * rank
        weight = TensorDescriptor(v_b.view(-1, rank), [heads * values, rank], [rank, 1], [values, 128])
        options = {"num_warps": tile.warps, **launch_options(attended.device)}
        if tile.blocks >= blocks:
            _project_value[grid](
                attended, weight, v_scale, q, scale, tokens, rank, attended.stride(0), q.stride(0), scale.stride(1),
                V=values, ROWS=tile.rows, BLOCKS=blocks, LEFT=tile.tokens_left, **options,
            )  # fmt: skip
        else:
            _project_value_streamed[grid](
                TensorDescriptor(attended.view(tokens, -1), [tokens, width], [width, 1], [tile.rows, 128]),
                weight, v_b, v_scale, q, scale, tokens, rank, q.stride(0), scale.stride(1),
                V=values, ROWS=tile.rows, BLOCKS=blocks, STAGES=VALUE_STAGES, **options,
            )  # fmt: skip
    return q, scale
