"""Absorbed MLA decode for few tokens of V3's shape: pages are on their way before the queries exist (Gluon, GPU only).

A program takes 64 heads of one token and an equal share of its pages, counted on the device. As our other kernels, it
waits for what precedes and lets what follows start early; a second launch merges the pieces. Not batch-invariant: the
shares depend on the number of tokens.
"""

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import check
from kernels.latent import check_cache
from kernels.mla_pages import attend_pages
from kernels.mla_pieces import PAGE, merge_pieces
from kernels.pdl import launch_options
from kernels.tiles import sm_count

HEADS = 64  # of a program
RANK, ROPE = 512, 64
LOG2_E = 1.4426950408889634
WIDE_ROWS = gl.NVMMASharedLayout(128, 16, 2)  # rows of 128 bytes, swizzled
CHUNKS = gl.NVMMASharedLayout(128, 16, 3)  # the same, by chunks of 64 columns
REGISTERS = 168  # a thread: what twelve warps may have
MOST_PIECES = 64
KIND = torch.bfloat16


def can_split(rank: int, rope: int, block_tokens: int, dtype: torch.dtype) -> bool:
    """Whether `mla_decode_split` takes a latent of `rank` and `rope` channels in such pages."""
    return (rank, rope, block_tokens) == (RANK, ROPE, PAGE) and dtype == KIND


def mla_decode_split(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    total_lens: Tensor,
    sm_scale: float,
    *,
    query_len: int = 1,
    splits: int | None = None,
) -> Tensor:
    """Attend few tokens, causally among a request's queries.

    `block_tables`, `total_lens` and the pages before the first query's are read while kernels before this one still
    run: no kernel since the last launch `pdl.in_order` may write them.

    Args:
        q: bf16 [requests * query_len, heads, 576], absorbed and rotated.
        cache: [blocks, 64, 576], any block stride that is a multiple of the token stride, bf16.
        block_tables: int32 [requests, max_blocks]; total_lens: int32 [requests], cached and query tokens, at least
            `query_len`.
        splits: programs that share a token's pages; by default enough to fill the chip.

    Returns:
        [requests * query_len, heads, 512] bf16.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.on_gpu("q", q)
    check_cache(cache)
    check.shape("cache", cache, (None, PAGE, RANK + ROPE))
    check.multiple("cache.stride(0)", cache.stride(0), cache.stride(1))
    check.shape("q", q, (None, None, RANK + ROPE))
    check.dtype("q", q, KIND)
    check.contiguous("q", q)
    check.dtype("cache", cache, q.dtype)
    tokens, heads, width = q.shape
    requests, max_blocks = block_tables.shape
    check.shape("q", q, (requests * query_len, None, None))
    check.dtype("block_tables", block_tables, torch.int32)
    check.dense_rows("block_tables", block_tables)
    check.at_least("block_tables.shape[1]", max_blocks, 1)
    check.shape("total_lens", total_lens, (requests,))
    check.dtype("total_lens", total_lens, torch.int32)
    for name, tensor in (("cache", cache), ("block_tables", block_tables), ("total_lens", total_lens)):
        check.same_device(name, tensor, q)
    tiles = triton.cdiv(heads, HEADS)
    if splits is not None:
        check.at_least("splits", splits, 1)
    else:
        programs = min(max(sm_count(q.device) // max(tokens * tiles, 1), 1), MOST_PIECES)
        splits = triton.cdiv(max_blocks, triton.cdiv(max_blocks, programs))
    values = q.new_empty((splits, tokens, tiles * HEADS, RANK))
    mass = q.new_empty((splits, tokens, tiles * HEADS), dtype=torch.float32)
    if tokens:
        page_rows = cache.stride(0) // cache.stride(1)
        rows = (cache.shape[0] - 1) * page_rows + PAGE
        attend_pages[(tokens, tiles, splits)](
            *_columns_and_rope(q, tokens * heads, width),
            *_columns_and_rope(cache, rows, cache.stride(1)),
            _by_columns(values, values.numel() // RANK, RANK, 4),
            block_tables, total_lens, mass,
            sm_scale * LOG2_E, tokens, heads, query_len, block_tables.stride(0), max_blocks, page_rows,
            PIECES=splits, num_warps=8, maxnreg=REGISTERS, launch_pdl=launch_options(q.device)["launch_pdl"],
        )  # fmt: skip
    return merge_pieces(values, mass, total_lens, query_len=query_len, heads=heads)


def _columns_and_rope(tensor: Tensor, rows: int, stride: int) -> tuple[TensorDescriptor, TensorDescriptor]:
    """TMA's views of rows of 576: 128 columns, and the last 64."""
    rope = TensorDescriptor(tensor, [rows, RANK + ROPE], [stride, 1], [64, 64], WIDE_ROWS)
    return _by_columns(tensor, rows, stride, 2), rope


def _by_columns(tensor: Tensor, rows: int, stride: int, chunks: int) -> TensorDescriptor:
    """64 rows of `chunks` x 64 columns, one chunk after the other, as wgmma wants them."""
    return TensorDescriptor(tensor, [stride // 64, rows, 64], [64, stride, 1], [chunks, 64, 64], CHUNKS)
