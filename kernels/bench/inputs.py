"""Random inputs at DeepSeek-V3 width: FP8 weights N(0, 1), scales near 1/sqrt(K), so that outputs are near N(0, 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.tiles import scale_buffer

HIDDEN = 7168
HEADS = 128
Q_LORA, RANK, ROPE, NOPE, VALUE = 1536, 512, 64, 128, 128
INTERMEDIATE = 2048
BLOCK_TOKENS = 64
LAYERS = 62  # of a block in the pool: 61 and the MTP layer
SM_SCALE = (NOPE + ROPE) ** -0.5
BF16 = torch.bfloat16
FP8 = torch.float8_e4m3fn

Quantised = tuple[Tensor, Tensor]


def device() -> torch.device:
    return torch.device("cuda")


def weight(*shape: int) -> Quantised:
    """Block-scaled FP8 weight [.., N, K] and its scales [.., ceil(N/128), ceil(K/128)]."""
    *lead, n, k = shape
    w = torch.empty(shape, dtype=FP8, device=device())
    flat = w.view(-1, n, k)
    for i in range(flat.shape[0]):
        flat[i] = torch.randn((n, k), dtype=BF16, device=device()).to(FP8)
    scale = (torch.rand((*lead, -(-n // 128), -(-k // 128)), device=device()) + 0.5) * k**-0.5
    return w, scale


def activation(rows: int, k: int) -> Quantised:
    """Quantised activations [rows, K] with scales in the layout of the matrix kernels."""
    x = torch.randn((rows, k), device=device()).to(FP8)
    scale = scale_buffer(rows, -(-k // 128), device())
    scale.copy_(torch.rand(scale.shape, device=device()) + 0.5)
    return x, scale


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=device(), dtype=torch.float32).to(BF16)


@dataclass(frozen=True)
class Angles:
    """cos and sin fp32 [positions, ROPE / 2]."""

    cos: Tensor
    sin: Tensor


def angles(positions: int = 32768) -> Angles:
    inverse = 1e4 ** -(torch.arange(0, ROPE, 2, device=device()) / ROPE)
    turn = torch.arange(positions, device=device())[:, None] * inverse[None]
    return Angles(turn.cos(), turn.sin())


def latent_pool(blocks: int, layers: int = LAYERS) -> Tensor:
    """One layer's view [blocks, BLOCK_TOKENS, RANK + ROPE] of a block-major pool; only that layer is filled."""
    pool = torch.empty((blocks, layers, BLOCK_TOKENS, RANK + ROPE), dtype=BF16, device=device())
    view = pool[:, layers // 2]
    for part in view.split(256):
        part.normal_()
    return view


def block_tables(requests: int, tokens: int, blocks: int) -> Tensor:
    """int32 [requests, blocks a request] on the CPU, in random order over the pool; no block twice."""
    each = -(-tokens // BLOCK_TOKENS)
    return torch.randperm(blocks)[: requests * each].view(requests, each).to(torch.int32)
