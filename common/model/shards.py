"""Where the tensors of a checkpoint lie: the files, their headers, and proof that none is cut short. No torch.

A safetensors file is 8 bytes of header length (little endian), the header as JSON, then the tensors' bytes, whose
offsets count from the header's end.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from common.config.json_file import read_json_object
from common.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    file: Path
    dtype: str  # as safetensors names it: F32, BF16, F8_E4M3, ...
    shape: tuple[int, ...]


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint, from the index or from the single file.

    Raises:
        CheckpointError: no checkpoint, a shard that is missing, cut short or not safetensors, or a tensor that the
            index promises and its shard lacks; names file and tensor.
    """
    index = directory / INDEX_FILE
    if not index.exists():
        single = directory / SINGLE_FILE
        if not single.exists():
            raise CheckpointError(f"{directory}: holds neither {INDEX_FILE} nor {SINGLE_FILE}")
        return read_header(single)
    weight_map = _weight_map(index)
    headers = {name: read_header(directory / name) for name in sorted(set(weight_map.values()))}
    for tensor, shard in weight_map.items():
        if tensor not in headers[shard]:
            raise CheckpointError(f"{directory / shard}: lacks {tensor}, which {INDEX_FILE} places there")
    return {tensor: headers[shard][tensor] for tensor, shard in weight_map.items()}


def shard_files(directory: Path) -> list[Path]:
    """The checkpoint's files in name order; that they exist is not checked."""
    index = directory / INDEX_FILE
    if not index.exists():
        return [directory / SINGLE_FILE]
    return [directory / name for name in sorted(set(_weight_map(index).values()))]


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, whose length is checked against the header.

    Raises:
        CheckpointError: the file is missing, cut short or not safetensors.
    """
    try:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            raw = stream.read(length) if 0 < length <= _MAX_HEADER_BYTES else b""
            size_bytes = stream.seek(0, 2)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: shard is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file}: not readable: {error}") from error
    if not raw or len(raw) < length:
        raise CheckpointError(f"{file}: cut short or not safetensors ({size_bytes} bytes)")
    try:
        entries = json.loads(raw)
        tensors = {
            name: (StoredTensor(file, entry["dtype"], tuple(entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{file}: header is not safetensors: {error}") from error
    data_bytes = max((end for _, end in tensors.values()), default=0)
    if size_bytes != 8 + length + data_bytes:
        first_lost = min(
            (name for name, (_, end) in tensors.items() if 8 + length + end > size_bytes),
            key=lambda name: tensors[name][1],
            default="no tensor",
        )
        raise CheckpointError(
            f"{file}: is {size_bytes} bytes and its header says {8 + length + data_bytes}; first lost: {first_lost}"
        )
    return {name: tensor for name, (tensor, _) in tensors.items()}


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: not a safetensors index: weight_map = {weight_map!r}")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index}: weight_map.{tensor} = {shard!r}: must be a file of the directory")
    return weight_map
