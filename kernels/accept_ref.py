"""Acceptance of drafts, reference: a draft stands while it equals the target's own draw at its position."""

import torch
from torch import Tensor


def accept(drafts: Tensor, draws: Tensor) -> Tensor:
    """Count each request's accepted drafts.

    Args:
        drafts: int64 [requests, k], proposed for the k positions after the last token.
        draws: int64 [requests, k + 1], the target's draws at those positions and the one after.

    Returns:
        int32 [requests], 0..k: draws[b, : accepted + 1] are the tokens gained.
    """
    return (drafts == draws[:, :-1]).to(torch.int32).cumprod(dim=1).sum(dim=1).to(torch.int32)
