"""One rank's model from a Hugging Face directory."""

from pathlib import Path

import torch

from common.errors import ConfigError
from common.model.base import Model
from common.model.config import read_model_config
from common.model.deepseek import DeepSeek
from common.model.weights import heads_of, load_weights
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.groups import Topology
from common.parallel.local_exchange import LocalExchange
from common.parallel.tensor_group import SingleRank


def load_model(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    topology: Topology | None = None,
    all_to_all: AllToAll | None = None,
    tensor_group: TensorGroup | None = None,
) -> Model:
    """Read config.json and the weights that this rank owns. Without `topology` the model is whole, on one rank.

    Args:
        all_to_all: this rank's end of the exchange; it says which experts are read.
        tensor_group: the tensor-parallel ranks of its instance.

    Raises:
        ConfigError: an unknown architecture, a field out of its limits, or `tp` that does not divide the heads.
        CheckpointError: a missing, truncated or misshapen file or tensor.
    """
    config = read_model_config(path)
    place = topology or Topology()
    if place.world != 1 and (all_to_all is None or tensor_group is None):
        raise ConfigError(f"world = {place.world}: more than one rank needs an exchange and a tensor group")
    all_to_all = all_to_all or LocalExchange(config.gate.experts)
    weights = load_weights(
        path,
        config,
        heads=heads_of(config, place.tp_rank, place.tp),
        experts=all_to_all.local_experts,
        dtype=dtype,
        device=device or torch.device("cpu"),
    )
    return DeepSeek(config, weights, all_to_all, tensor_group or SingleRank())
