"""Attention whose keys were split over programs: the sum of what each found.

A token's pages are shared out on the device, so a captured graph stays valid when lengths change: short requests leave
pieces unused, which are never read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.pdl import launch_options, release, wait
from kernels.tiles import pow2_at_least

PAGE = 64  # tokens
COLUMNS = 256  # of a program
ONE_WARP = 48  # pieces whose loads fit the registers of one warp
CHUNK = 8  # pieces in a tile


@triton.jit
def _merge(
    values_ptr, mass_ptr, totals_ptr, out_ptr, tokens, query_len, heads, padded,
    R: tl.constexpr, COLUMNS: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token and head, some columns. All loads are on their way before the first is used, and a thread keeps its
    columns through all pieces.
    """
    release(PDL)
    token, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # As attention, this needs no `wait`.
    limit = tl.load(totals_ptr + token // query_len) - query_len + 1 + token % query_len
    pages = tl.cdiv(limit, PAGE)
    share = tl.cdiv(pages, PIECES)
    row = token * padded + head
    wait(PDL)
    values = ()
    for first in tl.static_range(0, PIECES, CHUNK):
        piece = first + tl.arange(0, CHUNK)
        at = values_ptr + (piece * tokens * padded + row)[:, None] * R + column[None, :]
        values += (tl.load(at, mask=(piece * share < pages)[:, None], other=0.0),)  # type: ignore[assignment]
    piece = tl.arange(0, BLOCK)
    mass = tl.load(mass_ptr + piece * tokens * padded + row, mask=piece * share < pages, other=-1e30)
    top = tl.max(mass, axis=0)
    whole = tl.sum(tl.exp2(mass - top), axis=0)
    sums = tl.zeros((CHUNK, COLUMNS), tl.float32)
    for first in tl.static_range(0, PIECES, CHUNK):
        piece = first + tl.arange(0, CHUNK)
        mass = tl.load(mass_ptr + piece * tokens * padded + row, mask=piece * share < pages, other=-1e30)
        sums += values[first // CHUNK].to(tl.float32) * tl.exp2(mass - top)[:, None]
    out = tl.sum(sums, axis=0) / whole
    tl.store(out_ptr + (token * heads + head) * R + column, out.to(out_ptr.dtype.element_ty))


def merge_pieces(values: Tensor, mass: Tensor, total_lens: Tensor, *, query_len: int, heads: int) -> Tensor:
    """Sum the pieces of every token, as `mla_decode_split` shares them out: cdiv(pages, pieces) pages each.

    Args:
        values: [pieces, tokens, padded heads, R], each piece's own average, R a multiple of 256 or a power of two;
            mass: fp32 [pieces, tokens, padded heads], log2 of its sum of weights.
        total_lens: int32 [requests], of `query_len` tokens each. Read while kernels before this one still run: none
            since the last launch `pdl.in_order` may write them.

    Returns:
        [tokens, heads, R] in the values' type.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("values", values, (None, None, None, None))
    pieces, tokens, padded, rank = values.shape
    check.at_least("values.shape[2]", padded, heads)
    check.contiguous("values", values)
    check.shape("mass", mass, (pieces, tokens, padded))
    check.dtype("mass", mass, torch.float32)
    check.contiguous("mass", mass)
    check.shape("total_lens", total_lens, (tokens // query_len,))
    check.dtype("total_lens", total_lens, torch.int32)
    for name, tensor in (("mass", mass), ("total_lens", total_lens)):
        check.same_device(name, tensor, values)
    out = values.new_empty((tokens, heads, rank))
    if tokens:
        columns, block = min(COLUMNS, rank), pow2_at_least(pieces)
        check.multiple("values.shape[3]", rank, columns)
        _merge[(tokens * heads, rank // columns)](
            values, mass, total_lens, out, tokens, query_len, heads, padded,
            R=rank, COLUMNS=columns, PIECES=pieces, BLOCK=block, CHUNK=min(block, CHUNK), PAGE=PAGE,
            num_warps=1 if pieces <= ONE_WARP else 2,
            **launch_options(values.device),
        )  # fmt: skip
    return out
