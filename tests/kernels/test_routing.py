"""Router, sorting by expert and the way back."""

import pytest
import torch

from kernels import gate, gate_ref, permute, permute_ref
from kernels.errors import KernelArgumentError
from tests.kernels.closeness import assert_close

V3 = {
    "scoring": "sigmoid",
    "n_group": 8,
    "topk_group": 4,
    "top_k": 8,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
V2 = {
    "scoring": "softmax",
    "n_group": 4,
    "topk_group": 2,
    "top_k": 4,
    "norm_topk_prob": False,
    "routed_scaling_factor": 16.0,
}
MIXTRAL = {
    "scoring": "softmax",
    "n_group": 1,
    "topk_group": 1,
    "top_k": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}


@pytest.mark.parametrize(
    ("experts", "form", "biased"), [(256, V3, True), (32, V2, False), (12, MIXTRAL, False), (64, V3, True)]
)
def test_gate(experts, form, biased, device):
    logits = torch.randn(6, experts, device=device)
    bias = torch.randn(experts, device=device) * 0.1 if biased else None
    ids, weights = gate.gate(logits, bias, **form)
    reference_ids, reference_weights = gate_ref.gate(logits, bias, **form)
    assert torch.equal(ids, reference_ids)
    assert_close(weights, reference_weights)


def test_gate_breaks_ties_by_lower_id(device):
    ids, _ = gate.gate(torch.zeros(2, 64, device=device), torch.zeros(64, device=device), **V3)
    assert ids.tolist() == [list(range(8))] * 2


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_project_gate(tokens, shared, device):
    x, w = torch.randn(tokens, 192, device=device), torch.randn(64, 192, device=device) / 14
    bias = torch.randn(64, device=device) * 0.1
    ids, weights, counts = gate.project_gate(x, w, bias, **V3, shared=shared, splits=3)
    reference_ids, reference_weights, reference_counts = gate_ref.project_gate(x, w, bias, **V3, shared=shared)
    assert torch.equal(ids, reference_ids)
    assert torch.equal(counts, reference_counts)
    assert_close(weights, reference_weights)


@pytest.mark.parametrize("form", [V3, {**V2, "n_group": 8}])
def test_gate_among_equals(form, device):
    """Few distinct scores: groups and experts tie, and the lower id goes first."""
    logits = torch.randint(-1, 2, (20, 64), device=device).float()
    bias = torch.zeros(64, device=device) if form["scoring"] == "sigmoid" else None
    ids, weights = gate.gate(logits, bias, **form)
    reference_ids, reference_weights = gate_ref.gate(logits, bias, **form)
    assert torch.equal(ids, reference_ids)
    assert_close(weights, reference_weights)


@pytest.mark.parametrize("choose", [gate.gate, gate_ref.gate])
def test_gate_by_hand(choose, device):
    """Group worth is the sum of the two best biased scores; weights are unbiased (a zero bias would hide a mistake)."""
    scores = torch.tensor([[0.9, 0.1, 0.5, 0.5, 0.2, 0.2, 0.3, 0.1]], device=device)
    logits = torch.logit(scores)
    bias = torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0], device=device)
    form = {**V3, "n_group": 4, "topk_group": 1, "top_k": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False}
    ids, weights = choose(logits, bias, **form)
    assert ids.tolist() == [[3]]  # 0.5 + 0.6 beats 0.9 + 0.1
    torch.testing.assert_close(weights, torch.tensor([[0.5]], device=device))


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize(("tokens", "experts"), [(9, 5), (1, 16), (0, 4)])
def test_permute_and_back(tokens, experts, align, device):
    ids = torch.randint(-1, experts + 1, (tokens, 3), dtype=torch.int32, device=device)
    x = torch.randn(tokens, 40, device=device)
    out, counts, rows = permute.permute(x, ids, experts, align)
    reference, reference_counts, reference_rows = permute_ref.permute(x, ids, experts, align)
    assert torch.equal(rows, reference_rows)
    assert torch.equal(counts, reference_counts)
    for token, slot in (rows >= 0).nonzero().tolist():
        assert torch.equal(out[rows[token, slot]], x[token])
    weights, extra = torch.rand(tokens, 3, device=device), torch.randn(tokens, 40, device=device)
    back = permute.unpermute(reference, rows, weights, extra, extra)
    assert_close(back, permute_ref.unpermute(reference, rows, weights, extra, extra))
    again = permute.sort_pairs(ids, experts, align, counts.clone())
    assert torch.equal(again[0], rows)


@pytest.mark.parametrize("align", [1, 4])
def test_many_pairs_are_shared_by_programs(align, device, monkeypatch):
    monkeypatch.setattr(permute, "LARGE_PAIRS", 1000)
    monkeypatch.setattr(permute, "PAIRS", 64)
    ids = torch.randint(-1, 6, (300, 4), dtype=torch.int32, device=device)
    rows, sources, counts = permute.sort_pairs(ids, 5, align)
    monkeypatch.undo()
    for out, reference in zip((rows, counts), permute.sort_pairs(ids, 5, align)[::2], strict=True):
        assert torch.equal(out, reference)
    live = rows >= 0
    tokens = torch.arange(300, device=device)[:, None].expand(300, 4)
    assert torch.equal(sources[rows[live].long()].long(), tokens[live])
    assert torch.equal(counts, torch.bincount(ids[(ids >= 0) & (ids < 5)].long(), minlength=5).int())
    again = permute.sort_pairs(ids, 5, align, counts)
    assert torch.equal(again[0], rows)


def test_row_experts_and_scales(device):
    counts = torch.tensor([3, 0, 9, 1], dtype=torch.int32, device=device)
    for align in (1, 4, 128):
        owners = permute.row_experts(counts, 300, align)
        assert torch.equal(owners, permute_ref.row_experts(counts, 300, align))
    scale, sources = torch.rand(5, 3, device=device), torch.randint(0, 5, (70,), dtype=torch.int32, device=device)
    assert torch.equal(permute.permute_scales(scale, sources), permute_ref.permute_scales(scale, sources))


def test_gather_rows(device):
    sources = torch.randint(0, 5, (11,), dtype=torch.int32, device=device)
    sources[3] = 2**31 - 1  # rows of no expert hold anything
    x, scale = torch.randn(5, 272, device=device).to(torch.float8_e4m3fn), torch.rand(5, 3, device=device)
    out, out_scale = permute.gather_rows(x, scale, sources)
    reference, reference_scale = permute_ref.gather_rows(x, scale, sources)
    assert torch.equal(out.view(torch.uint8), reference.view(torch.uint8))
    assert torch.equal(out_scale, reference_scale)
    assert out_scale.stride() == (1, 12)


def test_combine_of_a_permutation_is_the_weighted_sum():
    ids = torch.tensor([[0, 2], [1, 0]])
    x = torch.tensor([[1.0], [10.0]])
    out, _, rows = permute_ref.permute(x, ids, 3)
    assert out.flatten().tolist() == [1.0, 10.0, 10.0, 1.0]
    back = permute_ref.unpermute(out, rows, torch.tensor([[0.5, 0.25], [2.0, 1.0]]))
    assert back.flatten().tolist() == [0.75, 30.0]


def test_wrong_arguments_are_named(device):
    with pytest.raises(KernelArgumentError, match="bias is"):
        gate.gate(torch.zeros(1, 64, device=device), torch.zeros(63, device=device), **V3)
    with pytest.raises(KernelArgumentError, match="weights is"):
        permute.unpermute(torch.zeros(4, 8, device=device), torch.zeros(2, 2, dtype=torch.int32, device=device),
                          torch.zeros(2, 1, device=device))  # fmt: skip
