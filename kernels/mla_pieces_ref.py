"""Sum of attention whose keys were split over programs, reference: softmax over the pieces' masses."""

import torch
from torch import Tensor

PAGE = 64  # tokens


def merge_pieces(values: Tensor, mass: Tensor, total_lens: Tensor, *, query_len: int, heads: int) -> Tensor:
    """Sum the pieces of every token, as `mla_decode_split` shares them out: cdiv(pages, pieces) pages each.

    Args:
        values: [pieces, tokens, padded heads, R], each piece's own average; mass: fp32 [pieces, tokens, padded heads],
            log2 of its sum of weights.
        total_lens: int32 [requests], of `query_len` tokens each.

    Returns:
        [tokens, heads, R] in the values' type.
    """
    pieces, tokens, _, rank = values.shape
    out = values.new_empty((tokens, heads, rank))
    for token in range(tokens):
        limit = int(total_lens[token // query_len]) - query_len + 1 + token % query_len
        pages = -(-limit // PAGE)
        live = -(-pages // -(-pages // pieces))
        weights = torch.exp2(mass[:live, token, :heads] - mass[:live, token, :heads].amax(0))
        total = (values[:live, token, :heads].float() * (weights / weights.sum(0))[..., None]).sum(0)
        out[token] = total.to(out.dtype)
    return out
