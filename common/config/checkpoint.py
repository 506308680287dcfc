"""What a checkpoint's config.json says about a cluster that wants to serve it. Needs no torch."""

from pathlib import Path
from typing import Any

from common.config.cluster import ClusterConfig, ParallelConfig
from common.config.json_file import read_json_object
from common.errors import CheckpointError, ConfigError


def check_checkpoint(config: ClusterConfig, source: str) -> None:
    """Refuse a cluster whose shape the model does not allow.

    Raises:
        ConfigError: names `source`, field, value and limit.
        CheckpointError: config.json is missing or not JSON.
    """
    fields = read_checkpoint_config(Path(config.model.path))
    for pool, parallel in (("prefill", config.prefill.parallel), ("decode", config.decode.parallel)):
        for fault in _parallel_faults(fields, parallel):
            raise ConfigError(f"{source}: {pool}.parallel.{fault}")
    longest = fields.get("max_position_embeddings")
    if isinstance(longest, int) and config.context_tokens > longest:
        raise ConfigError(f"{source}: context_tokens = {config.context_tokens}: the model knows {longest} positions")
    if config.draft_tokens and not fields.get("num_nextn_predict_layers"):
        raise ConfigError(f"{source}: draft_tokens = {config.draft_tokens}: the model has no MTP layer, set 0")


def read_checkpoint_config(directory: Path) -> dict[str, Any]:
    """The fields of ``config.json``.

    Raises:
        CheckpointError: `directory` has none that can be read.
    """
    file = directory / "config.json"
    try:
        there = file.exists()
    except OSError as error:  # such as a directory that this user may not enter
        raise CheckpointError(f"model.path = {directory}: {error.strerror}") from error
    if not there:
        raise CheckpointError(f"model.path = {directory}: holds no {file.name}")
    return read_json_object(file)


def _parallel_faults(fields: dict[str, Any], parallel: ParallelConfig) -> list[str]:
    faults = []
    experts = fields.get("n_routed_experts") or fields.get("num_local_experts")
    if isinstance(experts, int) and experts % parallel.ep != 0:
        faults.append(f"ep = {parallel.ep}: must divide the model's {experts} routed experts")
    heads = fields.get("num_attention_heads")
    if isinstance(heads, int) and heads % parallel.tp != 0:
        faults.append(f"tp = {parallel.tp}: must divide the model's {heads} attention heads")
    return faults
