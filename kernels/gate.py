"""Expert choice: projection, scores, bias, group-limited top-k, normalisation and per-expert counts, in two launches.

The projection is bf16 with fp32 sums, K split over programs (256 columns alone would fill four multiprocessors); the
second launch adds the splits in order and chooses, one program a token. Softmax and one-group forms (V2-Lite, Mixtral)
are the same kernels. Batch-invariant: splits depend on the weight's shape alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import check
from kernels.gate_ref import Scoring
from kernels.pdl import begin, launch_options
from kernels.tiles import pow2_at_least

NEG_INF = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=["M"])
def _project(
    x_ptr, w_ptr, part_ptr, counts_ptr, M, K, stride_x,
    E: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, COUNTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile_n, split, tile_m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile_n * COLUMNS + tl.arange(0, COLUMNS)
    m = tile_m * ROWS + tl.arange(0, ROWS)
    begin(PDL)
    if (tile_m == 0) & (split == 0):
        tl.store(counts_ptr + n, tl.zeros((COLUMNS,), tl.int32), mask=n < COUNTED)
    k_blocks = tl.cdiv(K, BLOCK_K)
    lane = tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + n.to(tl.int64)[:, None] * K + lane[None, :]
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * stride_x + lane[:, None]
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for kb in tl.range(split * k_blocks // SPLITS, (split + 1) * k_blocks // SPLITS, num_stages=STAGES):
        in_k = kb * BLOCK_K + lane < K
        w = tl.load(w_ptrs + kb * BLOCK_K, mask=(n < E)[:, None] & in_k[None, :], other=0.0)
        x = tl.load(x_ptrs + kb * BLOCK_K, mask=(m < M)[None, :] & in_k[:, None], other=0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    at = (split * M + m[:, None]).to(tl.int64) * E + n[None, :]
    tl.store(part_ptr + at, tl.trans(acc), mask=(m < M)[:, None] & (n < E)[None, :])


@triton.jit(do_not_specialize=["M"])
def _choose(
    part_ptr, bias_ptr, ids_ptr, weights_ptr, counts_ptr, M, routed_scaling_factor,
    E: tl.constexpr, E_BLOCK: tl.constexpr, SPLITS: tl.constexpr, GROUPS: tl.constexpr, TOPK_GROUP: tl.constexpr,
    TOP_K: tl.constexpr, K_BLOCK: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    NORMALISE: tl.constexpr, COUNT: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E_BLOCK)
    live = expert < E
    logits = tl.load(part_ptr + token * E + expert, mask=live, other=0.0).to(tl.float32)
    for s in tl.static_range(1, SPLITS):
        logits += tl.load(part_ptr + (s * M + token) * E + expert, mask=live, other=0.0)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        masked = tl.where(live, logits, NEG_INF)
        e = tl.exp(masked - tl.max(masked, axis=0))
        scores = e / tl.sum(e, axis=0)
    choice = scores
    if BIASED:
        choice += tl.load(bias_ptr + expert, mask=live, other=0.0)
    choice = tl.where(live, choice, NEG_INF)
    if GROUPS > 1:
        # E is GROUPS times a power of two here, so the block has no dead tail.
        grouped = tl.reshape(choice, (GROUPS, E_BLOCK // GROUPS))
        worth = tl.max(grouped, axis=1)
        if BIASED:
            member = tl.arange(0, E_BLOCK // GROUPS)[None, :]
            first = tl.argmax(grouped, axis=1, tie_break_left=True)
            worth += tl.max(tl.where(member == first[:, None], NEG_INF, grouped), axis=1)
        g = tl.arange(0, GROUPS)
        taken = tl.zeros((GROUPS,), tl.int32)
        for _ in tl.static_range(TOPK_GROUP):
            best = tl.argmax(tl.where(taken > 0, NEG_INF, worth), axis=0, tie_break_left=True)
            taken = tl.where(g == best, 1, taken)
        choice = tl.reshape(tl.where((taken > 0)[:, None], grouped, NEG_INF), (E_BLOCK,))
    slot = tl.arange(0, K_BLOCK)
    ids = tl.zeros((K_BLOCK,), tl.int32)
    weights = tl.zeros((K_BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        best = tl.argmax(choice, axis=0, tie_break_left=True)
        weight = tl.sum(tl.where(expert == best, scores, 0.0), axis=0)
        ids = tl.where(slot == j, best, ids)
        weights = tl.where(slot == j, weight, weights)
        choice = tl.where(expert == best, NEG_INF, choice)
    if NORMALISE:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    weights *= routed_scaling_factor
    ids = tl.where(slot < TOP_K, ids, E + slot - TOP_K)
    weights = tl.where(slot < TOP_K, weights, 1.0)
    chosen = slot < TOP_K + SHARED
    tl.store(ids_ptr + token * (TOP_K + SHARED) + slot, ids.to(ids_ptr.dtype.element_ty), mask=chosen)
    tl.store(weights_ptr + token * (TOP_K + SHARED) + slot, weights, mask=chosen)
    if COUNT:
        tl.atomic_add(counts_ptr + ids, 1, mask=chosen, sem="relaxed")


PROJECT_SPLITS = 16
PROJECT_BLOCK_K = 64


def gate(
    logits: Tensor,
    bias: Tensor | None,
    *,
    scoring: Scoring,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """Choose experts from ready `logits` [tokens, experts]; see `gate_ref.gate`. Ids come as int64."""
    check.shape("logits", logits, (None, None))
    check.contiguous("logits", logits)
    ids = logits.new_empty((logits.shape[0], top_k), dtype=torch.int64)
    weights = _choose_experts(
        logits[None], bias, ids, None, scoring, n_group, topk_group, top_k, norm_topk_prob, routed_scaling_factor
    )
    return ids, weights


def project_gate(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *,
    scoring: Scoring,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
    shared: int = 0,
    splits: int = PROJECT_SPLITS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Router of one layer: projection, choice and counts.

    Args:
        x: [tokens, H] bf16 (or fp32), the normed hidden state; w: [experts, H] in the same type.
        shared: so many experts that every token takes with weight 1 follow the routed ones: their ids are `experts`,
            `experts + 1`, ... in the columns after the top k.

    Returns:
        ids int32 [tokens, top_k + shared], best first; weights fp32 alike; counts int32 [experts + shared].

    Raises:
        KernelArgumentError: wrong shape, type, stride or device.
    """
    check.shape("x", x, (None, None))
    check.dtype("x", x, torch.bfloat16, torch.float16, torch.float32)
    check.dense_rows("x", x)
    check.shape("w", w, (None, x.shape[1]))
    check.dtype("w", w, x.dtype)
    check.contiguous("w", w)
    check.same_device("w", w, x)
    (tokens, hidden), experts = x.shape, w.shape[0]
    ids = x.new_empty((tokens, top_k + shared), dtype=torch.int32)
    if tokens == 0:
        return (
            ids,
            x.new_empty((0, top_k + shared), dtype=torch.float32),
            x.new_zeros(experts + shared, dtype=torch.int32),
        )
    counts = x.new_empty(experts + shared, dtype=torch.int32)
    splits = min(splits, max(1, triton.cdiv(hidden, 2 * PROJECT_BLOCK_K)))
    parts = x.new_empty((splits, tokens, experts), dtype=torch.float32)
    rows = min(64, pow2_at_least(tokens, 16))
    _project[(triton.cdiv(experts + shared, 64), splits, triton.cdiv(tokens, rows))](
        x, w, parts, counts, tokens, hidden, x.stride(0),
        E=experts, ROWS=rows, COLUMNS=64, BLOCK_K=PROJECT_BLOCK_K, SPLITS=splits, STAGES=4, COUNTED=experts + shared,
        num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    weights = _choose_experts(
        parts, bias, ids, counts, scoring, n_group, topk_group, top_k, norm_topk_prob, routed_scaling_factor, shared
    )
    return ids, weights, counts


def _choose_experts(
    parts: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    counts: Tensor | None,
    scoring: Scoring,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
    shared: int = 0,
) -> Tensor:
    splits, tokens, experts = parts.shape
    check.multiple("experts", experts, n_group)
    if n_group > 1 and experts != pow2_at_least(experts):
        check.multiple("experts", experts, pow2_at_least(experts))
    check.at_most("topk_group", topk_group, n_group)
    check.at_most("top_k", top_k, experts // n_group * topk_group)
    if bias is not None:
        check.shape("bias", bias, (experts,))
        check.dtype("bias", bias, torch.float32)
        check.same_device("bias", bias, parts)
    weights = parts.new_empty((tokens, top_k + shared), dtype=torch.float32)
    if tokens:
        _choose[(tokens,)](
            parts, parts if bias is None else bias, ids, weights, ids if counts is None else counts, tokens,
            routed_scaling_factor,
            E=experts, E_BLOCK=pow2_at_least(experts), SPLITS=splits, GROUPS=n_group, TOPK_GROUP=topk_group,
            TOP_K=top_k, K_BLOCK=pow2_at_least(top_k + shared), SIGMOID=scoring == "sigmoid", BIASED=bias is not None,
            NORMALISE=norm_topk_prob, COUNT=counts is not None, SHARED=shared,
            num_warps=1, **launch_options(parts.device),
        )  # fmt: skip
    return weights
