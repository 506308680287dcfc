"""Kernel tests run in Triton's CPU interpreter, and on a GPU where there is one."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU of the Hopper generation")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def device() -> torch.device:
    torch.manual_seed(0)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"
