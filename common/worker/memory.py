"""A rank's device and what it allocates there: what cannot be had is refused by the setting that asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from common.config.cluster import ClusterConfig
from common.config.place import RankPlace
from common.errors import ConfigError


def device_of(config: ClusterConfig, place: RankPlace) -> torch.device:
    """Where the rank computes.

    Raises:
        ConfigError: this torch or this node has no such GPU.
    """
    if config.model.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "torch sees no GPU here" if torch.version.cuda else "torch is built without CUDA here"
        raise ConfigError(f"model.device = cuda: {why}")
    if place.local_rank >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(f"model.device = cuda: this rank's is GPU {place.local_rank}, and torch sees {count} here")
    return torch.device("cuda", place.local_rank)


@contextmanager
def asked_by(setting: str, value: int, asked_bytes: int, device: torch.device) -> Iterator[None]:
    """Within, one allocation of `asked_bytes` that `setting` decides.

    Raises:
        ConfigError: it cannot be had; names setting, bytes asked and bytes available.
    """
    try:
        yield
    except RuntimeError as error:  # of torch, also where it is out of GPU memory
        there = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        limit = f"asks {asked_bytes} bytes ({_gib(asked_bytes)}), {there} bytes ({_gib(there)}) are available"
        raise ConfigError(f"{setting} = {value}: {limit} on {device}") from error


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.1f} GiB"
