import math

import torch

from common.model.config import Yarn, parse_model_config
from common.model.rotary import Rotary, inverse_frequencies, softmax_scale
from tests.oracle.configurations import configuration

V3_YARN = Yarn(40.0, 32.0, 1.0, 1.0, 1.0, 4096)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    plain = inverse_frequencies(64, 10000.0, None)
    yarn = inverse_frequencies(64, 10000.0, V3_YARN)
    turns = 4096 * plain / (2 * math.pi)  # within the original context
    assert torch.equal(yarn[turns > 35], plain[turns > 35])
    torch.testing.assert_close(yarn[turns < 0.8], plain[turns < 0.8] / 40)
    blend = yarn / plain
    assert bool((blend.diff() <= 1e-6).all())
    assert 5 < int(((blend > 1 / 40 + 1e-4) & (blend < 1 - 1e-4)).sum()) < 20


def test_rotation_of_pairs_is_complex_multiplication() -> None:
    rotary = Rotary(parse_model_config(configuration("base")), torch.device("cpu"))
    positions = torch.tensor([0, 1, 77, 16000])
    x = torch.randn(4, 3, 16)
    rotation = rotary.at(positions)
    turn = torch.polar(torch.ones(4, 8), positions[:, None] * inverse_frequencies(16, 10000.0, V3_YARN))
    expected = torch.view_as_real(torch.view_as_complex(x.view(4, 3, 8, 2)) * turn[:, None]).flatten(-2)
    torch.testing.assert_close(rotation.apply(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(rotation.apply(x[:, 0]), rotation.apply(x)[:, 0])
    assert rotation.apply(x.bfloat16()).dtype == torch.bfloat16


def test_scores_depend_on_distance_alone() -> None:
    rotary = Rotary(parse_model_config(configuration("base")), torch.device("cpu"))
    q, k = torch.randn(1, 16), torch.randn(1, 16)
    scores = [
        float(rotary.at(torch.tensor([at + 5])).apply(q) @ rotary.at(torch.tensor([at])).apply(k).T)
        for at in (0, 100, 4090)
    ]
    assert max(scores) - min(scores) < 1e-2


def test_softmax_scale_holds_mscale_squared() -> None:
    config = parse_model_config(configuration("base"))
    assert softmax_scale(config) == 48**-0.5 * (0.1 * math.log(40) + 1) ** 2
    assert softmax_scale(parse_model_config(configuration("base", rope_scaling=None))) == 48**-0.5
