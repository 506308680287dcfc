"""Counters by which the programs that share an output tile find out who is last; zero between kernels."""

import torch
from torch import Tensor

from kernels import check

SETS = 128  # streams of a device that may use them
SLOTS = 8192  # tiles that one launch may count


_pools: dict[torch.device, Tensor] = {}
_sets: dict[tuple[torch.device, int], int] = {}


def arrival_counters(slots: int, device: torch.device) -> Tensor:
    """Zeroed int32 counters [SLOTS] of the current stream.

    Every kernel leaves them zero and kernels of a stream follow each other, so a stream needs one set. Two graphs that
    run at once must have been captured on two streams. The pool is made, and zeroed, by the first call on a device: a
    graph would only record the zeroing.

    Raises:
        RuntimeError: the first call on this device came while a graph was being captured; run the kernel once before.
        KernelArgumentError: more tiles or more streams than there are counters for.
    """
    check.at_most("output tiles", slots, SLOTS)
    on_gpu = device.type == "cuda"
    if device not in _pools:
        if on_gpu and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("run a split kernel once before capturing it in a graph")
        _pools[device] = torch.zeros((SETS, SLOTS), dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
    index = _sets.setdefault((device, stream), sum(known == device for known, _ in _sets))
    check.at_most("streams", index + 1, SETS)
    return _pools[device][index]
