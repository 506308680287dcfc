"""Tokens into the residual stream and out of it."""

import torch
from torch.nn.functional import embedding, linear


def embed(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``[tokens]`` -> ``[tokens, hidden]``."""
    return embedding(token_ids, table)


def project_to_vocabulary(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """``[rows, hidden]`` -> ``[rows, vocab]`` fp32."""
    return linear(hidden, head).float()
