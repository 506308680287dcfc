"""Multi-head MLA prefill (keys 192 wide, values 128): FlashInfer's ragged fa3, cuDNN for one request, state merging.

Context cached earlier is gathered (`latent.gather_latent`) and up-projected by the caller: in front of the new keys, or
chunk by chunk with `causal=False` and `merge_states`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.libraries import library
from kernels.mla_decode import WORKSPACE_BYTES
from kernels.pdl import begin, launch_options
from kernels.tiles import pow2_at_least

LOG2_E = 1.4426950408889634


class RaggedPrefill:
    """FlashInfer's ragged attention with its workspace; `plan` once a step for all layers, then `run` per layer."""

    def __init__(self, device: torch.device, *, backend: str = "fa3") -> None:
        prefill = library("flashinfer.prefill", "mla_prefill")
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)

    def plan(
        self,
        query_lens: Tensor,
        key_lens: Tensor,
        *,
        heads: int,
        key_width: int,
        value_width: int,
        sm_scale: float,
        causal: bool,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Lengths int32 [requests] on the CPU."""
        self._wrapper.plan(
            _starts(query_lens),
            _starts(key_lens),
            heads,
            heads,
            key_width,
            head_dim_vo=value_width,
            causal=causal,
            sm_scale=sm_scale,
            q_data_type=dtype,
            kv_data_type=dtype,
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(out [tokens, heads, V], lse base 2 [tokens, heads])."""
        return self._wrapper.run(q, k, v, return_lse=True)


def attend_cudnn(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """One request through cuDNN: q [S, heads, D], k and v as long; out [S, heads, V], lse base 2 [S, heads]."""

    def heads_first(x: Tensor) -> Tensor:
        return x.transpose(0, 1)[None]

    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        heads_first(q), heads_first(k), heads_first(v), None, True, 0.0, causal, False, scale=sm_scale
    )
    return out[0].transpose(0, 1), lse.view(q.shape[1], q.shape[0]).T * LOG2_E


def mla_prefill(
    q: Tensor, k: Tensor, v: Tensor, query_lens: Tensor, key_lens: Tensor, sm_scale: float, *, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Plan and attend once; see `mla_prefill_ref.mla_prefill`.

    Raises:
        KernelArgumentError: wrong shape, type or device.
        KernelUnavailableError: FlashInfer is not installed.
    """
    check.shape("q", q, (None, None, None))
    check.shape("k", k, (None, q.shape[1], q.shape[2]))
    check.shape("v", v, (k.shape[0], q.shape[1], None))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check.dtype(name, tensor, torch.bfloat16, torch.float16)
        check.same_device(name, tensor, q)
    attention = RaggedPrefill(q.device)
    attention.plan(
        query_lens.cpu().int(),
        key_lens.cpu().int(),
        heads=q.shape[1],
        key_width=q.shape[2],
        value_width=v.shape[2],
        sm_scale=sm_scale,
        causal=causal,
        dtype=q.dtype,
    )
    return attention.run(q, k, v)


@triton.jit
def _merge_states(a_ptr, lse_a_ptr, b_ptr, lse_b_ptr, out_ptr, lse_ptr, V, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    lse_a = tl.load(lse_a_ptr + row)
    lse_b = tl.load(lse_b_ptr + row)
    top = tl.maximum(lse_a, lse_b)
    top = tl.where(top == float("-inf"), 0.0, top)
    share_a = tl.exp2(lse_a - top)
    share_b = tl.exp2(lse_b - top)
    total = share_a + share_b
    safe = tl.where(total == 0.0, 1.0, total)
    at = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + row * V + at, mask=at < V, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * V + at, mask=at < V, other=0.0).to(tl.float32)
    out = a * (share_a / safe) + b * (share_b / safe)
    tl.store(out_ptr + row * V + at, out.to(out_ptr.dtype.element_ty), mask=at < V)
    tl.store(lse_ptr + row, tl.log2(total) + top)


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Join two partial attentions over disjoint keys: out [tokens, heads, V], lse base 2 fp32 [tokens, heads].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("out_a", out_a, (None, None, None))
    check.shape("out_b", out_b, tuple(out_a.shape))
    check.dtype("out_b", out_b, out_a.dtype)
    for name, tensor in (("lse_a", lse_a), ("lse_b", lse_b)):
        check.shape(name, tensor, tuple(out_a.shape[:2]))
        check.dtype(name, tensor, torch.float32)
    for name, tensor in (("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b)):
        check.contiguous(name, tensor)
        check.same_device(name, tensor, out_a)
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    if out.numel():
        width = out.shape[2]
        _merge_states[(lse.numel(),)](
            out_a, lse_a, out_b, lse_b, out, lse, width, BLOCK=pow2_at_least(width), num_warps=1,
            **launch_options(out.device),
        )  # fmt: skip
    return out, lse


def _starts(lens: Tensor) -> Tensor:
    return torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
