"""Sorting (token, slot) pairs by expert and the weighted way back, reference.

`rows[t, j]` is where token t's j-th choice went; -1 where its id is not one of `0..experts-1` (an expert of another
rank). Within an expert rows keep the order of (token, slot), so the result depends on nothing but the ids.
"""

import torch
from torch import Tensor


def permute(x: Tensor, ids: Tensor, num_experts: int, align: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Copy each row of `x` [tokens, H] to every expert that `ids` [tokens, k] names.

    Returns:
        x [sorted_rows(tokens * k, num_experts, align), H] sorted by expert, each expert's rows beginning at a multiple
        of `align` (rows of no expert are zero); counts int32 [experts]; rows int32 [tokens, k].
    """
    flat = ids.flatten().long()
    valid = (flat >= 0) & (flat < num_experts)
    pairs = valid.nonzero().squeeze(1)
    order = pairs[flat[pairs].argsort(stable=True)]
    counts = torch.bincount(flat[pairs], minlength=num_experts).to(torch.int32)
    rows = torch.full_like(flat, -1, dtype=torch.int32)
    padded = (counts + align - 1) // align * align
    gaps = (padded - counts).cumsum(0) - (padded - counts)  # rows left free before each expert
    place = torch.arange(order.numel(), device=ids.device) + gaps[flat[order]]
    rows[order] = place.to(torch.int32)
    out = x.new_zeros((sorted_rows(flat.numel(), num_experts, align), x.shape[1]))
    out[place] = x[order // ids.shape[1]]
    return out, counts, rows.view(ids.shape)


def sorted_rows(pairs: int, num_experts: int, align: int) -> int:
    """Rows that hold any routing of `pairs` (token, slot) pairs with aligned starts."""
    return pairs if align == 1 else -(-(pairs + min(num_experts, pairs) * (align - 1)) // align) * align


def unpermute(
    y: Tensor, rows: Tensor, weights: Tensor, extra: Tensor | None = None, more: Tensor | None = None
) -> Tensor:
    """Sum each token's expert outputs by weight, slot after slot in fp32: [tokens, H] in y's type.

    Args:
        y: [M, H] as sorted by `permute`; rows: [tokens, k]; weights: fp32 [tokens, k].
        extra, more: [tokens, H] added last (residual, shared expert).
    """
    wide = torch.float64 if y.dtype == torch.float64 else torch.float32
    total = torch.zeros((rows.shape[0], y.shape[1]), dtype=wide, device=y.device)
    for slot in range(rows.shape[1] if y.shape[0] else 0):
        row = rows[:, slot].long()
        part = y[row.clamp_min(0)].to(wide) * weights[:, slot, None].to(wide)
        total += torch.where((row >= 0)[:, None], part, 0.0)
    for added in (extra, more):
        if added is not None:
            total += added.to(wide)
    return total.to(y.dtype)


def row_experts(counts: Tensor, total_rows: int, align: int) -> Tensor:
    """The expert of each sorted row, int32 [total_rows]; -1 between experts and after the last."""
    out = torch.full((total_rows,), -1, dtype=torch.int32, device=counts.device)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        out[start : start + count] = expert
        start += -(-count // align) * align
    return out


def permute_scales(scale: Tensor, sources: Tensor) -> Tensor:
    """Activation scales [tokens, blocks] of the sorted rows whose tokens are `sources` int32 [rows]."""
    return scale[sources.long().clamp(0, scale.shape[0] - 1)]


def gather_rows(x: Tensor, scale: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Copy quantised rows [tokens, K] next to each other, and their scales: [rows, K], [rows, blocks]."""
    token = sources.long().clamp(0, x.shape[0] - 1)
    return x.view(torch.uint8)[token].view(x.dtype), scale[token]
