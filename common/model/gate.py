"""Which experts a token goes to, and with what weight."""

import torch
from torch.nn.functional import linear

from common.model.config import GateConfig
from kernels import gate_ref


def choose_experts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: GateConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids ``[tokens, top_k]`` int64, best first, and weights ``[tokens, top_k]`` fp32.

    Args:
        x: ``[tokens, hidden]``, scored in fp32 whatever its type.
        weight: ``[experts, hidden]`` fp32. bias: ``[experts]`` fp32, for choosing alone.
    """
    return gate_ref.gate(
        linear(x.float(), weight),
        bias,
        scoring=config.scoring,
        n_group=config.groups,
        topk_group=config.kept_groups,
        top_k=config.top_k,
        norm_topk_prob=config.normalize,
        routed_scaling_factor=config.scale,
    )
