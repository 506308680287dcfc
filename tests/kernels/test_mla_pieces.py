"""Attention whose keys were split over programs: merged pieces are the whole."""

import math

import pytest
import torch

from kernels import mla_pieces_ref
from kernels.errors import KernelArgumentError
from kernels.mla_decode_ref import mla_decode
from kernels.mla_pieces import PAGE, merge_pieces
from tests.kernels.closeness import assert_close, poisoned

HEADS, PADDED, RANK, ROPE = 3, 64, 512, 16
SCALE = 0.1


def split_attention(q, cache, tables, total_lens, query_len, count):
    """Pieces as the programs leave them: equal shares of pages, and nothing where there is no page."""
    tokens = q.shape[0]
    values = poisoned(torch.empty(count, tokens, PADDED, RANK, device=q.device, dtype=q.dtype))
    mass = poisoned(torch.empty(count, tokens, PADDED, device=q.device))
    for token in range(tokens):
        request = token // query_len
        limit = int(total_lens[request]) - query_len + 1 + token % query_len
        share = math.ceil(math.ceil(limit / PAGE) / count) * PAGE
        keys = cache[tables[request].long()].flatten(0, 1)[:limit].float()
        for piece in range(math.ceil(limit / share)):
            part = keys[piece * share : (piece + 1) * share]
            scores = q[token].float() @ part.T * SCALE
            values[piece, token, :HEADS] = (scores.softmax(-1) @ part[:, :RANK]).to(q.dtype)
            mass[piece, token, :HEADS] = scores.logsumexp(-1) / math.log(2)
    return values, mass


@pytest.mark.parametrize(
    ("total_lens", "query_len", "count"),
    [([1], 1, 1), ([1], 1, 7), ([129], 1, 2), ([700], 2, 3), ([2, 64, 65, 1000], 2, 11), ([900, 3], 1, 17)],
)
def test_merged_pieces_are_the_whole(total_lens, query_len, count, device, on_gpu):
    kind = torch.bfloat16 if on_gpu else torch.float32
    requests, blocks = len(total_lens), 20
    cache = torch.randn(requests * blocks, PAGE, RANK + ROPE, device=device).to(kind)
    tables = torch.randperm(requests * blocks).view(requests, blocks).to(device=device, dtype=torch.int32)
    lens = torch.tensor(total_lens, dtype=torch.int32, device=device)
    q = torch.randn(requests * query_len, HEADS, RANK + ROPE, device=device).to(kind)
    values, mass = split_attention(q, cache, tables, lens, query_len, count)
    merged = merge_pieces(values, mass, lens, query_len=query_len, heads=HEADS)
    query_lens = torch.full((requests,), query_len)
    assert_close(merged, mla_decode(q[..., :RANK], q[..., RANK:], cache, tables, query_lens, lens, SCALE))
    assert_close(merged, mla_pieces_ref.merge_pieces(values, mass, lens, query_len=query_len, heads=HEADS))


@pytest.mark.parametrize(
    ("values", "mass", "named"),
    [((2, 4, 2, 16), (2, 4, 2), r"values\.shape\[2\]"), ((2, 4, 64, 16), (2, 4, 3), "mass"), ((2, 4, 64), (2, 4), "v")],
)
def test_wrong_pieces_are_named(values, mass, named, device):
    lens = torch.ones(4, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match=named):
        merge_pieces(torch.zeros(values, device=device), torch.zeros(mass, device=device), lens, query_len=1, heads=3)
