"""Routing of 10,000 tokens against transformers' routers, where masks of zero or a biased weight would show."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from common.model.config import GateConfig, parse_model_config
from common.model.gate import choose_experts
from tests.oracle.configurations import configuration

TOKENS = 10_000


def by_id(ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = ids.argsort(dim=1)
    return ids.gather(1, order), weights.gather(1, order)


def assert_same_routing(fields: dict[str, Any], router: Any, bias: torch.Tensor | None) -> None:
    generator = torch.Generator().manual_seed(3)
    config = parse_model_config(fields)
    weight = torch.randn((config.gate.experts, config.hidden_size), generator=generator) * 0.06
    x = torch.randn((TOKENS, config.hidden_size), generator=generator)
    with torch.no_grad():
        router.weight.copy_(weight)
        if bias is not None:
            router.e_score_correction_bias.copy_(bias)
        _, reference_weights, reference_ids = router(x)
    ids, weights = by_id(*choose_experts(x, weight, bias, config.gate))
    reference_ids, reference_weights = by_id(reference_ids, reference_weights)
    assert torch.equal(ids, reference_ids)
    torch.testing.assert_close(weights, reference_weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bias", [-2.0, 0.0, 2.0, "mixed", "random"])
@pytest.mark.parametrize("name", ["base", "ep128", "one_group"])
def test_v3(name: str, bias: float | str) -> None:
    """A bias below -1 makes every biased score negative: a dropped group masked by zero would then win."""
    fields = configuration(name)
    experts = fields["n_routed_experts"]
    values = {
        "mixed": torch.where(torch.arange(experts) % 3 == 0, 2.0, -2.0),
        "random": torch.randn(experts, generator=torch.Generator().manual_seed(5)) * 0.1,
    }
    given = values[bias] if isinstance(bias, str) else torch.full((experts,), bias)
    router = DeepseekV3TopkRouter(transformers.DeepseekV3Config(**oracle_fields(fields)))
    assert_same_routing(fields, router, given)


@pytest.mark.parametrize("name", ["v2_lite", "v2_groups"])
def test_v2(name: str) -> None:
    fields = configuration(name)
    router = DeepseekV2TopkRouter(transformers.DeepseekV2Config(**oracle_fields(fields)))
    assert_same_routing(fields, router, None)


def test_plain_top_k() -> None:
    """As in Mixtral: the softmax over all experts, the best renormalised, is the softmax over the best."""
    gate = GateConfig(8, 2, 1, 1, "softmax", correction_bias=False, normalize=True, scale=1.0)
    x, weight = torch.randn(200, 16), torch.randn(8, 16)
    ids, weights = choose_experts(x, weight, None, gate)
    best = (x @ weight.T).topk(2)
    assert torch.equal(ids, best.indices)
    torch.testing.assert_close(weights, best.values.softmax(-1))


def oracle_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("model_type", "architectures", "torch_dtype")}
