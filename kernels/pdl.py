"""Programmatic dependent launch: the next kernel starts while the last one drains.

Every kernel lets its successor start at once (`release`), does what depends on no earlier kernel (prefetch weights),
then waits for all earlier kernels' writes (`wait`). Because every kernel waits, a chain is ordered as without it, but
for what is read before: weights, and what attention of few tokens takes to be older than the step
(`mla_decode.DecodeAttention`). Whoever writes that by a kernel launches the next of ours `in_order`. A kernel that a
library's may follow does not release but `settle`s: FlashMLA's starts early where it may, and does not wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_early = ContextVar("early", default=True)


@contextmanager
def in_order(needed: bool = True) -> Iterator[None]:
    """Where `needed`, launches inside start only when everything before has ended.

    So the first kernels of a forked stream, of a join, and after a library's.
    """
    token = _early.set(_early.get() and not needed)
    try:
        yield
    finally:
        _early.reset(token)


def launch_options(device: torch.device) -> dict[str, Any]:
    """Keyword arguments for a launch on `device`; the CPU interpreter has no such thing."""
    return {"PDL": True, "launch_pdl": _early.get()} if device.type == "cuda" else {"PDL": False}


@triton.jit
def release(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def begin(PDL: tl.constexpr):
    """For a kernel with nothing to do ahead."""
    release(PDL)
    wait(PDL)


@triton.jit
def settle(PDL: tl.constexpr):
    """End with all stores performed, TMA's too: a successor that does not wait starts when the last program has ended,
    and only one that waits is sure to find what was still under way then.
    """
    if PDL:
        lane = tl.arange(0, 128)
        tl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; fence.proxy.async.global; membar.gl; mov.u32 $0, $1;",
            "=r,r", [lane], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def prefetch(pointers, PDL: tl.constexpr):
    """Bring the 128-byte lines at `pointers` into L2; worth it before `wait`."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )
