"""Absorbed MLA decode over block-major pages: our kernel, FlashInfer (fa3) and FlashMLA behind one signature.

All read one layer's strided view of the pool in place with 64-bit page offsets. Ours (`mla_decode_split`) shares the
pages out on the device. FlashInfer plans on the CPU once a step for all layers, from CPU tensors (device tensors would
synchronise); the plan refills fixed buffers, so a captured graph stays valid when lengths change. FlashMLA is planned
likewise (`mla_parts`), or plans itself on the device, and needs one query length for the whole batch, as ours does.
`DecodeAttention` takes the one that is fastest for its shape. None is batch-invariant: how a request's keys are split
depends on the other requests. What follows a library's must be launched `pdl.in_order`: FlashMLA's last kernel may end
before the one that it belongs to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import check
from kernels.errors import KernelArgumentError
from kernels.latent import check_cache
from kernels.libraries import library
from kernels.mla_decode_split import can_split, mla_decode_split
from kernels.mla_parts import count_parts, plan_parts
from kernels.tiles import sm_count

WORKSPACE_BYTES = 128 << 20


class FlashInferMla:
    """One attention plan: buffers of fixed size for at most `max_requests` and `max_blocks` pages in all.

    Two microbatches in flight at once need two of these.
    """

    def __init__(
        self, device: torch.device, max_requests: int, max_blocks: int, *, backend: str = "fa3", graph: bool = True
    ) -> None:
        mla = library("flashinfer.mla", "mla_decode")

        def ints(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.int32, device=device)

        self._wrapper = mla.BatchMLAPagedAttentionWrapper(
            torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device),
            use_cuda_graph=graph,
            qo_indptr=ints(max_requests + 1),
            kv_indptr=ints(max_requests + 1),
            kv_indices=ints(max_blocks),
            kv_len_arr=ints(max_requests),
            backend=backend,
        )

    def plan(
        self,
        block_tables: Tensor,
        query_lens: Tensor,
        total_lens: Tensor,
        *,
        heads: int,
        rank: int,
        rope: int,
        block_tokens: int,
        sm_scale: float,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Prepare a step. All tensors int32 on the CPU; with a graph, one entry per captured request.

        Raises:
            KernelArgumentError: a tensor is not on the CPU.
        """
        for name, tensor in (("block_tables", block_tables), ("query_lens", query_lens), ("total_lens", total_lens)):
            check.same_device(name, tensor, torch.empty(0))
            check.dtype(name, tensor, torch.int32)
        pages = (total_lens + block_tokens - 1) // block_tokens
        column = torch.arange(block_tables.shape[1], dtype=torch.int32)
        self._wrapper.plan(
            _starts(query_lens),
            _starts(pages),
            block_tables[column[None] < pages[:, None]],
            total_lens,
            heads,
            rank,
            rope,
            block_tokens,
            True,
            sm_scale,
            dtype,
            dtype,
        )

    def run(self, q_nope: Tensor, q_pe: Tensor, cache: Tensor) -> Tensor:
        """Attend: q_nope [tokens, heads, R], q_pe [tokens, heads, P], cache [blocks, block_tokens, R + P]."""
        rank = q_nope.shape[-1]
        return self._wrapper.run(q_nope, q_pe, cache[..., :rank], cache[..., rank:])


class FlashMla:
    """FlashMLA's dense decode; unless planned, it plans on the device in the first call after `reset`."""

    def __init__(self) -> None:
        self._library = library("flash_mla", "mla_decode")
        self.reset()

    def reset(self) -> None:
        """Forget the plan: lengths have changed, or a graph is to capture the planning kernel."""
        self._plan, _ = self._library.get_mla_metadata()

    def plan(self, total_lens: Tensor, device: torch.device, *, query_len: int, heads: int) -> None:
        """Prepare a step of requests of `total_lens` tokens, int32 on the CPU; a captured graph stays valid.

        Raises:
            KernelArgumentError: `total_lens` is not on the CPU.
        """
        check.same_device("total_lens", total_lens, torch.empty(0))
        parts, pieces = plan_parts(total_lens.tolist(), count_parts(sm_count(device), query_len, heads))
        if self._plan.tile_scheduler_metadata is None:
            self._plan.tile_scheduler_metadata, self._plan.num_splits = parts.to(device), pieces.to(device)
        else:
            self._plan.tile_scheduler_metadata.copy_(parts)
            self._plan.num_splits.copy_(pieces)

    def run(self, q: Tensor, cache: Tensor, block_tables: Tensor, total_lens: Tensor, sm_scale: float) -> Tensor:
        """Attend: q [requests, query_len, heads, R + P] absorbed and rotated; block_tables and total_lens int32.

        Returns:
            [requests, query_len, heads, R].
        """
        out, _ = self._library.flash_mla_with_kvcache(
            q,
            cache.unsqueeze(2),
            block_tables,
            total_lens,
            512,
            self._plan,
            softmax_scale=sm_scale,
            causal=q.shape[1] > 1,
        )
        return out


# With so many query tokens in all, or fewer, our kernel or else FlashInfer is ahead; measured at 5,000 cached tokens.
SPLIT_TOKENS = 8
FLASHINFER_TOKENS = 7


@dataclass(frozen=True)
class AttentionShape:
    """What attention knows of the model: heads, latent R and rotated P, tokens a page, scale of the scores."""

    heads: int
    rank: int
    rope: int
    block_tokens: int
    sm_scale: float
    dtype: torch.dtype = torch.bfloat16


class DecodeAttention:
    """Attention of a batch of fixed shape: the fastest kernel for it, planned once a step for all layers.

    Its `dependent` says whether the kernels take part in programmatic dependent launch as all of ours do: the query
    absorb before them may let them start `early`, and what follows need not be launched `in_order`. They then read the
    plan and every page before the first query's while kernels before them still run. This step's own latent may be
    appended just before, for it goes into later pages. Between any other kernel that writes pages (blocks that land, a
    copy of a block, a second pass of a step that filled a page in the first) and `run` there must be a launch
    `pdl.in_order`, in the stream of `run`; the first launch of a graph is one, and so is the first after `plan`.

    Args:
        query_len: of every request; None where requests differ.
        max_blocks: the longest block table.
    """

    def __init__(
        self,
        device: torch.device,
        shape: AttentionShape,
        requests: int,
        query_len: int | None,
        max_blocks: int,
        *,
        graph: bool = True,
    ) -> None:
        self._device, self._shape, self._requests, self._query_len = device, shape, requests, query_len
        self._pages: FlashInferMla | None = None
        self._flash: FlashMla | None = None
        tokens = requests * (query_len or 0)
        self.dependent = 0 < tokens <= SPLIT_TOKENS and can_split(
            shape.rank, shape.rope, shape.block_tokens, shape.dtype
        )
        if not self.dependent and tokens <= FLASHINFER_TOKENS:
            self._pages = FlashInferMla(device, requests, requests * max_blocks, graph=graph)
            return
        if not self.dependent:
            self._flash = FlashMla()
        self._tables = torch.zeros((requests, max_blocks), dtype=torch.int32, device=device)
        self._lens = torch.full((requests,), query_len or 1, dtype=torch.int32, device=device)

    def plan(self, block_tables: Tensor, query_lens: Tensor, total_lens: Tensor) -> None:
        """Prepare a step: [requests, <= max_blocks] and [requests], int32 on the CPU, in the stream of `run`.

        Args:
            total_lens: cached and query tokens, also of a request that only fills the batch.

        Raises:
            KernelArgumentError: wrong shape or device, a table is too long, or lengths that the shape does not allow.
        """
        shape = self._shape
        check.shape("block_tables", block_tables, (self._requests, None))
        for name, tensor in (("query_lens", query_lens), ("total_lens", total_lens)):
            check.shape(name, tensor, (self._requests,))
            check.same_device(name, tensor, torch.empty(0))
        if self._query_len is not None and bool((query_lens != self._query_len).any()):
            raise KernelArgumentError("query_lens", query_lens.tolist(), f"{self._query_len} of every request")
        if bool((total_lens < query_lens).any()):
            raise KernelArgumentError("total_lens", total_lens.tolist(), f"at least {query_lens.tolist()}")
        if self._pages is not None:
            self._pages.plan(
                block_tables, query_lens, total_lens,
                heads=shape.heads, rank=shape.rank, rope=shape.rope, block_tokens=shape.block_tokens,
                sm_scale=shape.sm_scale, dtype=shape.dtype,
            )  # fmt: skip
            return
        check.same_device("block_tables", block_tables, torch.empty(0))
        check.at_most("block_tables.shape[1]", block_tables.shape[1], self._tables.shape[1])
        if self._flash is not None:
            assert self._query_len is not None
            self._flash.plan(total_lens, self._device, query_len=self._query_len, heads=shape.heads)
        # Copies from the CPU and no kernels: our attention reads both while the kernels before it still run.
        self._tables.copy_(torch.nn.functional.pad(block_tables, (0, self._tables.shape[1] - block_tables.shape[1])))
        self._lens.copy_(total_lens)

    def run(self, q: Tensor, cache: Tensor) -> Tensor:
        """Attend: q [tokens, heads, R + P] absorbed and rotated, cache [blocks, block_tokens, R + P].

        Returns:
            [tokens, heads, R].
        """
        rank, scale = self._shape.rank, self._shape.sm_scale
        if self._pages is not None:
            return self._pages.run(q[..., :rank], q[..., rank:], cache)
        if self._flash is not None:
            batched = q.view(self._lens.shape[0], -1, *q.shape[1:])
            return self._flash.run(batched, cache, self._tables, self._lens, scale).flatten(0, 1)
        assert self._query_len is not None
        return mla_decode_split(q, cache, self._tables, self._lens, scale, query_len=self._query_len)


def mla_decode(
    q_nope: Tensor,
    q_pe: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    query_lens: Tensor,
    total_lens: Tensor,
    sm_scale: float,
) -> Tensor:
    """Plan and attend once; see `mla_decode_ref.mla_decode`. A serving step plans once for all layers.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: the library that is faster here is not installed.
    """
    check_cache(cache)
    tokens, heads, rank = q_nope.shape
    rope = cache.shape[2] - rank
    check.shape("q_pe", q_pe, (tokens, heads, rope))
    check.dtype("q_nope", q_nope, torch.bfloat16, torch.float16)
    check.dtype("q_pe", q_pe, q_nope.dtype)
    check.dtype("cache", cache, q_nope.dtype)
    requests, max_blocks = block_tables.shape
    check.shape("query_lens", query_lens, (requests,))
    check.shape("total_lens", total_lens, (requests,))
    for name, tensor in (("q_pe", q_pe), ("cache", cache)):
        check.same_device(name, tensor, q_nope)
    lens = query_lens.cpu().int()
    shape = AttentionShape(heads, rank, rope, cache.shape[1], sm_scale, q_nope.dtype)
    query_len = int(lens[0]) if len(set(lens.tolist())) == 1 else None
    attention = DecodeAttention(q_nope.device, shape, requests, query_len, max_blocks, graph=False)
    attention.plan(block_tables.cpu().int(), lens, total_lens.cpu().int())
    return attention.run(torch.cat((q_nope, q_pe), dim=-1), cache)


def _starts(lens: Tensor) -> Tensor:
    return torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
