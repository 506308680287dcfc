"""What must hold before a decode layer's time means anything: a graph repeats it, and each half matches its reference.

The halves are compared apart, the second on the first one's own output. Otherwise FP8 rounding in the first half moves
the router's scores by more than its near ties, a token takes another expert, and the comparison says nothing.
"""

import torch
from torch import Tensor

from kernels.bench import layer_ref
from kernels.bench.layer import Attend, DecodeStep, LayerWeights, decode_layer, hidden_after_attention, route
from kernels.bench.layer import hidden_after_experts as experts_half

TOLERANCE = 0.05  # of what a half adds to a token, the worst token


def check_decode_layer(hidden: Tensor, w: LayerWeights, step: DecodeStep, attend: Attend) -> dict[str, float | int]:
    """Run the layer eagerly, from a graph, and half by half beside the references.

    Returns:
        The worst token's relative error of each half, and how many tokens the router sent elsewhere than its
        reference did: ties to the last bit, which the second error leaves out.

    Raises:
        ArithmeticError: the layer is wrong.
    """
    if not torch.equal(decode_layer(hidden, w, step, attend), replayed(hidden, w, step, attend)):
        raise ArithmeticError("a replay of the decode layer's graph differs from its eager run")
    first = hidden_after_attention(hidden, w, step, attend)
    attention_error = worst(first[0], layer_ref.hidden_after_attention(hidden, w, step)[0], hidden)
    reference, ids = layer_ref.hidden_after_experts(*first, w)
    same = (route(first[1], w)[0].sort(1).values == ids.sort(1).values).all(1)
    ties = int((~same).sum())
    experts_error = worst(experts_half(*first, w)[same], reference[same], first[0][same])
    if not max(attention_error, experts_error) <= TOLERANCE or ties > hidden.shape[0] // 8:
        raise ArithmeticError(
            f"decode layer: attention {attention_error:.4f}, experts {experts_error:.4f} of what each adds, {ties} of "
            f"{hidden.shape[0]} tokens routed otherwise"
        )
    return {"attention": round(attention_error, 5), "experts": round(experts_error, 5), "ties": ties}


def replayed(hidden: Tensor, w: LayerWeights, step: DecodeStep, attend: Attend) -> Tensor:
    """The layer's output from a CUDA graph that ran on other tokens before: what it left behind would not be right."""
    given = torch.randn_like(hidden)
    decode_layer(given, w, step, attend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_layer(given, w, step, attend)
    for tokens in (given.clone(), hidden):
        given.copy_(tokens)
        graph.replay()
    torch.cuda.synchronize()
    return out.clone()


def worst(out: Tensor, reference: Tensor, before: Tensor) -> float:
    """The largest error of a token, of what was added to it."""
    added, expected = out.float() - before.float(), reference.float() - before.float()
    return float(((added - expected).norm(dim=1) / expected.norm(dim=1)).max())
