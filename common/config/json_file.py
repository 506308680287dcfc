"""JSON files that somebody else wrote: a checkpoint's."""

import json
from pathlib import Path
from typing import Any

from common.errors import CheckpointError


def read_json_object(file: Path) -> dict[str, Any]:
    """
    Raises:
        CheckpointError: the file cannot be read, is not JSON, or holds anything but one object.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: not a text in UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file}: not JSON that can be read: nested too deep") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{file}: holds {type(document).__name__}, not an object")
    return document
