"""A checkpoint's JSON files."""

import json
from pathlib import Path
from typing import Any

from common.errors import CheckpointError


def read_json_object(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{file}: holds {type(document).__name__}, not an object")
    return document
