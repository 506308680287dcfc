"""Tile sizes of the matrix kernels and the rounding their launchers share."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BLOCK_K = 128  # one scale per 128 of K: a k-step is one scale block


@dataclass(frozen=True)
class Tile:
    """How one program of a matrix kernel works.

    `rows` tokens by `columns` output features per program, `splits` programs along K, `stages` k-steps in flight of
    `unroll` scale blocks each; `flatten` lets the next item's loads start under the last one's end.
    """

    rows: int
    columns: int
    splits: int = 1
    stages: int = 4
    warps: int = 4
    programs_per_sm: int = 1
    flatten: bool = False
    unroll: int = 1


def pow2_at_least(n: int, least: int = 1) -> int:
    """Smallest power of two that is at least `n` and `least`."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def scale_buffer(tokens: int, blocks: int, device: torch.device) -> Tensor:
    """Uninitialised activation scales [tokens, blocks] fp32, column-major with tokens padded to 16 bytes.

    That is the layout that Hopper's matrix kernels load by TMA, so nothing transposes it later.
    """
    padded = max(4, (tokens + 3) // 4 * 4)
    return torch.empty((blocks, padded), dtype=torch.float32, device=device).T[:tokens]


def padded_scale_buffer(experts: int, max_rows: int, blocks: int, device: torch.device) -> Tensor:
    """Uninitialised activation scales [experts, max_rows, blocks] fp32 of the padded form, each expert's as above."""
    padded = max(4, (max_rows + 3) // 4 * 4)
    return torch.empty((experts, blocks, padded), dtype=torch.float32, device=device).transpose(1, 2)[:, :max_rows]


@lru_cache(maxsize=8)
def sm_count(device: torch.device) -> int:
    """Multiprocessors of `device`; 4 for the CPU interpreter, so that persistent loops iterate."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
