"""Checkpoints of the small models and the oracle over each, made once per test run."""

from pathlib import Path

import pytest

from tests.oracle.checkpoint_files import dequantized, quantized, random_tensors, write_checkpoint
from tests.oracle.configurations import configuration
from tests.oracle.transformers_model import Oracle


class Zoo:
    """Models by the names in configurations.py, written on first use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._oracles: dict[Path, Oracle] = {}

    def checkpoint(self, name: str) -> Path:
        """Two shards in fp32."""
        directory = self._directory / name
        if not directory.exists():
            fields = configuration(name)
            write_checkpoint(directory, fields, random_tensors(fields))
        return directory

    def fp8_checkpoint(self, name: str) -> Path:
        """The official format: FP8 with a scale per 128 x 128 block, edges partial."""
        directory = self._directory / f"{name}-fp8"
        if not directory.exists():
            fields = configuration(name)
            write_checkpoint(directory, fields, quantized(random_tensors(fields)), shards=3)
        return directory

    def dequantized_checkpoint(self, name: str) -> Path:
        """What the FP8 checkpoint stands for, in fp32: transformers cannot read partial blocks."""
        directory = self._directory / f"{name}-from-fp8"
        if not directory.exists():
            fields = configuration(name)
            write_checkpoint(directory, fields, dequantized(quantized(random_tensors(fields))))
        return directory

    def oracle(self, directory: Path) -> Oracle:
        if directory not in self._oracles:
            self._oracles[directory] = Oracle(directory)
        return self._oracles[directory]


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("models"))
