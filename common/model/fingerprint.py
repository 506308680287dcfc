"""A short name for exactly these weights, equal on every machine that holds a copy. No torch.

Latent cached by one model is worthless to another, so prefix keys and transfer handshakes carry this. Reading all of
a 700 GB checkpoint at each start is out of the question; hashed are config.json, every shard's header and evenly
spaced samples of its bytes. Shards of up to a mebibyte are hashed whole.
"""

import hashlib
import json
from pathlib import Path

from common.config.checkpoint import read_checkpoint_config
from common.errors import CheckpointError
from common.model.shards import read_header, shard_files

_DIGEST_BYTES = 16
_WHOLE_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def model_fingerprint(directory: Path) -> str:
    """32 hexadecimal digits.

    Raises:
        CheckpointError: a file is missing or cut short.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    fields = read_checkpoint_config(directory)
    digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    for file in shard_files(directory):
        tensors = read_header(file)
        for name in sorted(tensors):
            digest.update(f"\n{file.name} {name} {tensors[name].dtype} {tensors[name].shape}".encode())
        for sample in _samples(file):
            digest.update(sample)
    return digest.hexdigest()


def _samples(file: Path) -> list[bytes]:
    try:
        size = file.stat().st_size
        if size <= _WHOLE_BYTES:
            return [file.read_bytes()]
        with file.open("rb") as stream:
            samples = []
            for i in range(_SAMPLES):
                stream.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                samples.append(stream.read(_SAMPLE_BYTES))
            return samples
    except OSError as error:
        raise CheckpointError(f"{file}: not readable: {error}") from error
