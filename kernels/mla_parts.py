"""How FlashMLA's programs share the pages of a batch: equal parts of consecutive requests, planned on the CPU.

FlashMLA plans on the device with a fixed slack that leaves parts up to a twentieth longer than they need be, and splits
requests for a gain that merging them costs again; here the longest part is as short as it can be. A plan is for one
batch and one step; all layers share it.
"""

from itertools import count

import torch
from torch import Tensor

PAGE = 64  # tokens
ROWS = 64  # queries times heads a program takes
OVERHEAD = 5  # pages' time that beginning and ending a piece of a request takes
MERGE = 8  # pages' time that merging split requests takes at the end, while parts are long


def count_parts(multiprocessors: int, query_len: int, heads: int) -> int:
    """Parts of the key axis that run at once."""
    return max(multiprocessors // -(-query_len * heads // ROWS), 1)


def plan_parts(total_lens: list[int], parts: int) -> tuple[Tensor, Tensor]:
    """Share the pages of requests of `total_lens` tokens among `parts`.

    Requests stay whole where that makes the longest part no more than MERGE longer: then nothing is merged. FlashMLA's
    merging kernel waits for its attention only where it merges, so what comes next must not start early.

    Returns:
        int32 [parts, 8]: first and last request, first page of the first and the page after the last of the last,
        number of the first piece, whether the first and the last request are split, unused;
        int32 [requests + 1]: pieces of all requests before each.
    """
    pages = [max(1, -(-tokens // PAGE)) for tokens in total_lens]
    least = max(-(-(sum(pages) + OVERHEAD * len(pages)) // parts), OVERHEAD + 1)
    shared = next(plan for limit in count(least) if (plan := _fill(pages, parts, limit, split=True)))
    longest = max(pages) + OVERHEAD
    for limit in range(max(least, longest), shared[2] + MERGE + 1):
        if whole := _fill(pages, parts, limit, split=False):
            shared = whole
            break
    rows, pieces, _ = shared
    return torch.tensor(rows, dtype=torch.int32), torch.tensor(pieces, dtype=torch.int32)


def _fill(pages: list[int], parts: int, limit: int, *, split: bool) -> tuple[list[list[int]], list[int], int] | None:
    """Give each part `limit` pages' time of work, in order: rows, pieces, limit; None if that does not hold all."""
    rows, pieces = [], [0]
    request = page = piece = 0
    for _ in range(parts):
        if request == len(pages):
            rows.append([request, request - 1, 0, 0, 0, 0, 0, 0])
            continue
        first, first_page, first_piece, left = request, page, piece, limit
        while request < len(pages):
            rest = pages[request] - page
            if left < rest + OVERHEAD:
                if split and left > OVERHEAD:
                    page, piece = page + left - OVERHEAD, piece + 1
                break
            left -= rest + OVERHEAD
            pieces.append(pieces[-1] + piece + 1)
            request, page, piece = request + 1, 0, 0
        last, end = (request, page) if page else (request - 1, pages[request - 1])
        begun, unfinished = first_page > 0, end < pages[last]
        if first == last:
            begun = unfinished = begun or unfinished
        rows.append([first, last, first_page, end, first_piece, int(begun), int(unfinished), 0])
    return (rows, pieces, limit) if request == len(pages) else None
