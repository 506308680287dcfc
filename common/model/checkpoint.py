"""Tensors out of a Hugging Face directory, sliced before they are read, dequantised when they are FP8."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from common.errors import CheckpointError
from common.model.config import FP8_BLOCK
from common.model.shards import StoredTensor, find_tensors
from kernels.fp8_block_ref import dequantize_block

SCALE_SUFFIX = "_scale_inv"
_FP8 = "F8_E4M3"
_FLOATS = {_FP8, "F32", "BF16", "F16", "F64"}


class Checkpoint:
    """The tensors of one directory, whose files stay mapped until `close` (or the end of a ``with``).

    Raises:
        CheckpointError: see `common.model.shards.find_tensors`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tensors = find_tensors(directory)
        self._files = ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.clear()
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(
        self, name: str, shape: tuple[int, ...], *, rows: range | None = None, columns: range | None = None
    ) -> torch.Tensor:
        """The named tensor, or its `rows` and `columns` alone, as stored or, from FP8, as fp32.

        Args:
            shape: of the whole tensor; anything else is refused.
            rows, columns: ranges of step 1; columns for matrices only.

        Raises:
            CheckpointError: missing tensor or scale, wrong shape, not a float type, unreadable file.
        """
        stored = self._stored(name, shape)
        row = rows if rows is not None else range(shape[0])
        if len(shape) == 1:
            return self._slice(name, stored, (slice(row.start, row.stop),))
        column = columns if columns is not None else range(shape[1])
        if stored.dtype != _FP8:
            return self._slice(name, stored, (slice(row.start, row.stop), slice(column.start, column.stop)))
        return self._dequantized(name, stored, row, column)

    def _dequantized(self, name: str, stored: StoredTensor, rows: range, columns: range) -> torch.Tensor:
        """Whole scale blocks are read around the wanted part, since a head's edge rarely is a block's edge."""
        scale_name = name + SCALE_SUFFIX
        scale_shape = (-(-stored.shape[0] // FP8_BLOCK), -(-stored.shape[1] // FP8_BLOCK))
        if scale_name not in self._tensors:
            raise CheckpointError(f"{stored.file}: {name} is FP8 and {scale_name} is missing")
        scale = self._stored(scale_name, scale_shape)
        block_rows, block_columns = _blocks(rows), _blocks(columns)
        weight = self._slice(
            name, stored, (_elements(block_rows, stored.shape[0]), _elements(block_columns, stored.shape[1]))
        )
        part = dequantize_block(weight, self._slice(scale_name, scale, (block_rows, block_columns)))
        top, left = rows.start - block_rows.start * FP8_BLOCK, columns.start - block_columns.start * FP8_BLOCK
        return part[top : top + len(rows), left : left + len(columns)]

    def _stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.directory}: {name} is missing")
        if stored.shape != shape:
            raise CheckpointError(f"{stored.file}: {name} has shape {stored.shape}: must be {shape} by config.json")
        if stored.dtype not in _FLOATS:
            raise CheckpointError(f"{stored.file}: {name} is {stored.dtype}: must be one of {sorted(_FLOATS)}")
        return stored

    def _slice(self, name: str, stored: StoredTensor, index: tuple[slice, ...]) -> torch.Tensor:
        try:
            file = self._open.get(stored.file)
            if file is None:
                file = self._open[stored.file] = self._files.enter_context(safe_open(stored.file, framework="pt"))
            part: torch.Tensor = file.get_slice(name)[index]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{stored.file}: {name} cannot be read: {error}") from error
        return part


def _blocks(wanted: range) -> slice:
    return slice(wanted.start // FP8_BLOCK, -(-wanted.stop // FP8_BLOCK))


def _elements(blocks: slice, size: int) -> slice:
    return slice(blocks.start * FP8_BLOCK, min(blocks.stop * FP8_BLOCK, size))
