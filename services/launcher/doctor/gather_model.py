"""Facts of the model directory. Weights are measured by their headers, never read."""

from pathlib import Path

from common.config.checkpoint import read_checkpoint_config
from common.errors import CheckpointError
from common.model.fingerprint import model_fingerprint
from common.model.shards import read_header, shard_files
from services.launcher.doctor.facts import ModelFiles


def gather_model(directory: Path, *, with_weights: bool) -> ModelFiles:
    try:
        config = read_checkpoint_config(directory)
    except CheckpointError as error:
        return ModelFiles({}, (str(error),), has_tokenizer=False)
    tokenizer = (directory / "tokenizer.json").exists()
    if not with_weights:
        return ModelFiles(config, has_tokenizer=tokenizer)
    faults, weight_bytes = [], 0
    try:
        shards = shard_files(directory)
    except CheckpointError as error:
        return ModelFiles(config, (str(error),), tokenizer)
    for shard in shards:
        try:
            read_header(shard)
            weight_bytes += shard.stat().st_size
        except CheckpointError as error:
            faults.append(str(error))
    fingerprint = "" if faults else model_fingerprint(directory)
    return ModelFiles(config, tuple(faults), tokenizer, weight_bytes, fingerprint)
