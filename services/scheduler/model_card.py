"""What the front door must know of the model: read from the checkpoint's JSON files, without weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from common.config.checkpoint import read_checkpoint_config
from common.config.json_file import read_json_object
from common.errors import CheckpointError
from common.request import Sampling
from services.scheduler.sampling_ranges import MAX_TOP_K, RANGES


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
        CheckpointError: a file cannot be read, or a field is not what it should be; names file, field and value.
    """
    config_file, generation_file = directory / "config.json", directory / "generation_config.json"
    config = read_checkpoint_config(directory)
    generation = read_json_object(generation_file) if generation_file.exists() else {}
    vocab_tokens = config.get("vocab_size")
    if not _is_int(vocab_tokens) or vocab_tokens < 1:
        raise _fault(config_file, "vocab_size", vocab_tokens, "a whole number of at least 1")
    eos = _ids(generation_file, generation) or _ids(config_file, config)
    return ModelCard(name, vocab_tokens, context_tokens, eos, _default_sampling(generation_file, generation))


def _ids(file: Path, fields: dict[str, Any]) -> frozenset[int]:
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(_is_int(one) and one >= 0 for one in ids):
        raise _fault(file, "eos_token_id", value, "a token id or a list of them")
    return frozenset(ids)


def _default_sampling(file: Path, generation: dict[str, Any]) -> Sampling:
    if not generation.get("do_sample"):
        return Sampling()
    known: dict[str, Any] = {}
    for name in ("temperature", "top_p", "min_p", "top_k"):
        value = generation.get(name)
        if value is None:
            continue
        if name == "top_k":
            if not _is_int(value) or not 0 <= value <= MAX_TOP_K:
                raise _fault(file, name, value, f"0 to {MAX_TOP_K}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not RANGES[name].holds(value):
            raise _fault(file, name, value, str(RANGES[name]))
        known[name] = value
    return replace(Sampling(), **known)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _fault(file: Path, field: str, value: object, limit: str) -> CheckpointError:
    return CheckpointError(f"{file}: {field} = {value!r}: must be {limit}")
