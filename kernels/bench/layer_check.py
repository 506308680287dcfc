"""What must hold before a decode layer's time means anything: a graph repeats it, and each half matches its reference.

The halves are compared apart, the second on the first one's own output. Otherwise FP8 rounding in the first half moves
the router's scores by more than its near ties, a token takes another expert, and the comparison says nothing.
"""

import torch
from torch import Tensor

from kernels.bench import layer_ref
from kernels.bench.layer import EPS, DecodeStep, LayerWeights, decode_layer, hidden_after_attention, route
from kernels.bench.layer import hidden_after_experts as experts_half
from kernels.bench.prefill_layer import after_experts
from kernels.mla_decode import DecodeAttention
from kernels.quant_fp8 import add_rms_norm_quant

ULP = 2.0**-9  # half of bf16's, relative
EXPERTS_TOLERANCE = 0.05  # of what they add to a token, the worst token


def check_decode_layer(
    hidden: Tensor, w: LayerWeights, step: DecodeStep, attention: DecodeAttention
) -> dict[str, float | int]:
    """Run the layer eagerly, from a graph, and half by half beside the references.

    The first half rounds to FP8 three times in a row and softmax amplifies that: it may differ from its reference by no
    more than the reference does from itself when its input moves by half a bf16 step.

    Returns:
        The worst token's relative error of each half and the bound of the first, and how many tokens the router sent
        elsewhere than its reference did: ties to the last bit, which the second error leaves out.

    Raises:
        ArithmeticError: the layer is wrong.
    """
    if not torch.equal(decode_layer(hidden, w, step, attention), replayed(hidden, w, step, attention)):
        raise ArithmeticError("a replay of the decode layer's graph differs from its eager run")
    first = hidden_after_attention(hidden, w, step, attention)
    moved = (hidden.float() * (1 + ULP * torch.randn_like(hidden, dtype=torch.float32))).to(hidden.dtype)
    moves = added(layer_ref.hidden_after_attention(moved, w, step)[0], moved)
    expected = added(layer_ref.hidden_after_attention(hidden, w, step)[0], hidden)
    bound, attention_error = worst(moves, expected), worst(added(first[0], hidden), expected)
    reference, ids = layer_ref.hidden_after_experts(*first, w)
    same = (route(first[1], w)[0].sort(1).values == ids.sort(1).values).all(1)
    ties = int((~same).sum())
    out = experts_half(*first, w)
    experts_error = worst(added(out, first[0])[same], added(reference, first[0])[same])
    if not (attention_error <= bound and experts_error <= EXPERTS_TOLERANCE) or ties > hidden.shape[0] // 8:
        raise ArithmeticError(
            f"decode layer of {hidden.shape[0]} tokens: attention {attention_error:.4f} (bound {bound:.4f}), experts "
            f"{experts_error:.4f} of what each adds, {ties} tokens routed otherwise"
        )
    return {
        "attention": round(attention_error, 5), "bound": round(bound, 5), "experts": round(experts_error, 5),
        "ties": ties,
    }  # fmt: skip


def check_experts(hidden: Tensor, w: LayerWeights) -> dict[str, float | int]:
    """The second half of a prefill layer beside its reference, for tokens as they come out of attention.

    Returns:
        As `check_decode_layer`.

    Raises:
        ArithmeticError: it is wrong.
    """
    given = add_rms_norm_quant(torch.randn_like(hidden), hidden, w.post_norm, EPS)
    reference, ids = layer_ref.hidden_after_experts(*given, w)
    same = (route(given[1], w)[0].sort(1).values == ids.sort(1).values).all(1)
    ties = int((~same).sum())
    error = worst(added(after_experts(*given, w), given[0])[same], added(reference, given[0])[same])
    if not error <= EXPERTS_TOLERANCE or ties > hidden.shape[0] // 8:
        raise ArithmeticError(
            f"experts of {hidden.shape[0]} tokens of a prefill: {error:.4f} of what they add, {ties} routed otherwise"
        )
    return {"experts": round(error, 5), "ties": ties}


def replayed(hidden: Tensor, w: LayerWeights, step: DecodeStep, attention: DecodeAttention) -> Tensor:
    """The layer's output from a CUDA graph that ran on other tokens before: what it left behind would not be right."""
    given = torch.randn_like(hidden)
    decode_layer(given, w, step, attention)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_layer(given, w, step, attention)
    for tokens in (given.clone(), hidden):
        given.copy_(tokens)
        graph.replay()
    torch.cuda.synchronize()
    return out.clone()


def added(after: Tensor, before: Tensor) -> Tensor:
    """What a half adds to the residual stream, fp32."""
    return after.float() - before.float()


def worst(out: Tensor, expected: Tensor) -> float:
    """The largest relative error of a token."""
    return float(((out - expected).norm(dim=1) / expected.norm(dim=1)).max())
