"""Durations as people type them."""

from common.errors import InvalidInput

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


def seconds(field: str, text: str) -> float:
    """ "50ms", "2s" or plain seconds; `InvalidInput` names `field`."""
    cleaned = text.strip().lower()
    digits = cleaned.rstrip("musµ")
    unit = cleaned[len(digits) :].strip()
    try:
        value = float(digits) * _UNITS[unit]
    except (ValueError, KeyError) as error:
        raise InvalidInput(field, text, "a duration such as 2s, 50ms or 0.05") from error
    if not 0 < value < float("inf"):
        raise InvalidInput(field, text, "more than 0")
    return value
