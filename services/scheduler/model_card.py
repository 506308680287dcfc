"""What the front door must know of the model: read from the checkpoint's JSON files, without weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config.checkpoint import read_checkpoint_config
from common.errors import CheckpointError
from common.request import Sampling
from services.scheduler.json_file import read_json_object


@dataclass(frozen=True, slots=True)
class ModelCard:
    name: str
    vocab_tokens: int
    context_tokens: int  # prompt + completion
    eos_token_ids: frozenset[int]
    default_sampling: Sampling


def read_model_card(directory: Path, name: str, context_tokens: int) -> ModelCard:
    """From ``config.json`` and, where there is one, ``generation_config.json``, which wins.

    Raises:
        CheckpointError: a file cannot be read, or has no vocabulary size.
    """
    config = read_checkpoint_config(directory)
    generation_file = directory / "generation_config.json"
    generation = read_json_object(generation_file) if generation_file.exists() else {}
    vocab_tokens = config.get("vocab_size")
    if not isinstance(vocab_tokens, int):
        raise CheckpointError(f"{directory}/config.json: vocab_size = {vocab_tokens}: must be a number")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelCard(name, vocab_tokens, context_tokens, _ids(eos), _default_sampling(generation))


def _ids(value: object) -> frozenset[int]:
    if isinstance(value, int):
        return frozenset({value})
    return frozenset(value) if isinstance(value, list) else frozenset()


def _default_sampling(generation: dict[str, Any]) -> Sampling:
    if not generation.get("do_sample"):
        return Sampling()
    known = {key: generation[key] for key in ("temperature", "top_p", "top_k", "min_p") if key in generation}
    return replace(Sampling(), **known)
