"""Absorbed MLA decode over block-major pages: FlashInfer (fa3) and FlashMLA behind one signature.

Both read one layer's strided view of the pool in place with 64-bit page offsets. FlashInfer plans on the CPU once a
step for all layers, from CPU tensors (device tensors would synchronise); the plan refills fixed buffers, so a captured
graph stays valid when lengths change. FlashMLA plans on the device inside the captured launch and needs one query
length for the whole batch. Neither is batch-invariant: how a request's keys are split depends on the other requests.
"""

import torch
from torch import Tensor

from kernels import check
from kernels.latent import check_cache
from kernels.libraries import library

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
    """FlashMLA's dense decode; plans on the device, in the first call after `reset`."""

    def __init__(self) -> None:
        self._library = library("flash_mla", "mla_decode")
        self.reset()

    def reset(self) -> None:
        """Forget the plan: lengths have changed, or a graph is to capture the planning kernel."""
        self._plan, _ = self._library.get_mla_metadata()

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


def mla_decode(
    q_nope: Tensor,
    q_pe: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    query_lens: Tensor,
    total_lens: Tensor,
    sm_scale: float,
) -> Tensor:
    """Plan and attend once, by FlashInfer; see `mla_decode_ref.mla_decode`. A serving step plans once for all layers.

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
        KernelUnavailableError: FlashInfer is not installed.
    """
    check_cache(cache)
    tokens, heads, rank = q_nope.shape
    rope = cache.shape[2] - rank
    check.shape("q_pe", q_pe, (tokens, heads, rope))
    check.dtype("q_nope", q_nope, torch.bfloat16, torch.float16)
    check.dtype("q_pe", q_pe, q_nope.dtype)
    check.dtype("cache", cache, q_nope.dtype)
    check.shape("query_lens", query_lens, (block_tables.shape[0],))
    check.shape("total_lens", total_lens, (block_tables.shape[0],))
    for name, tensor in (("q_pe", q_pe), ("cache", cache)):
        check.same_device(name, tensor, q_nope)
    attention = FlashInferMla(q_nope.device, query_lens.numel(), block_tables.numel(), graph=False)
    attention.plan(
        block_tables.cpu().int(),
        query_lens.cpu().int(),
        total_lens.cpu().int(),
        heads=heads,
        rank=rank,
        rope=rope,
        block_tokens=cache.shape[1],
        sm_scale=sm_scale,
        dtype=q_nope.dtype,
    )
    return attention.run(q_nope, q_pe, cache)


def _starts(lens: Tensor) -> Tensor:
    return torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
