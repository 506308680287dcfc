"""One matrix product per expert over rows sorted by expert, reference."""

from torch import Tensor


def grouped(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    """`x` [M, K] holds counts[0] rows of expert 0, then counts[1] of expert 1, ...; `w` [experts, N, K].

    Returns [M, N] in x's type; rows past the sum of counts are zero. An expert without rows is skipped.
    """
    out = x.new_zeros((x.shape[0], w.shape[1]))
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            out[start : start + count] = x[start : start + count] @ w[expert].T
            start += count
    return out
