"""``tokenizer.json``, read with its faults named. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from common.config.json_file import read_json_object
from common.errors import CheckpointError


def read_tokenizer(file: Path) -> Tokenizer:
    """
    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    return build_tokenizer(read_json_object(file), file)


def build_tokenizer(document: Mapping[str, Any], file: Path) -> Tokenizer:
    """The tokenizer of a document that `file` held.

    Raises:
        CheckpointError: it is not one, or one without tokens.
    """
    try:
        tokenizer = Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library has no narrower type
        raise CheckpointError(f"{file}: not a tokenizer: {error}") from error
    if not tokenizer.get_vocab_size(with_added_tokens=True):
        raise CheckpointError(f"{file}: has no tokens")
    return tokenizer
