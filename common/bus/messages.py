"""What is said on the bus. Every message is a hint: lost, repeated or late ones cost time, never a token.

A message is a JSON object with a dataclass's fields. Unknown fields are ignored, so that versions may mix.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from common.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The whole load of an instance now, so that the latest report replaces all before it.

    `sequence` counts reports of one incarnation from 1. `load` holds numbers by name.
    """

    instance: str
    incarnation: int
    sequence: int
    load: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CancelNotice:
    """Nobody wants this work any more. Repeats a call that may not have reached its worker."""

    work_id: str


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """The instance takes no new work."""

    instance: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class HoldNotice:
    """Give the instance no new work for `hold_s` from now; said again in time while it shall last.

    So a group is emptied before it is taken away, and is back at work by itself when whoever wanted that is gone.
    """

    instance: str
    incarnation: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """A client wants its request ended and does not know which scheduler has it. Every scheduler answers."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RequestCancelAnswer:
    """Whether this scheduler had the request, which it then ends."""

    scheduler: str
    found: bool


@dataclass(frozen=True, slots=True)
class ExplanationQuestion:
    """Somebody asks why a recent request went as it did, and not the scheduler that served it. Every one answers."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ExplanationAnswer:
    """What this scheduler knows of it: an Explanation's bytes in base64, or nothing."""

    scheduler: str
    explanation: str


Message = (
    LoadReport
    | CancelNotice
    | DrainNotice
    | HoldNotice
    | RequestCancel
    | RequestCancelAnswer
    | ExplanationQuestion
    | ExplanationAnswer
)
M = TypeVar(
    "M",
    LoadReport,
    CancelNotice,
    DrainNotice,
    HoldNotice,
    RequestCancel,
    RequestCancelAnswer,
    ExplanationQuestion,
    ExplanationAnswer,
)

_JSON_TYPES: Mapping[object, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    Mapping[str, float]: (dict,),
}


def encode(message: Message) -> bytes:
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def decode(kind: type[M], data: bytes) -> M:
    """
    Raises:
        InvalidInput: it is not such a message; names the field.
    """
    try:
        given = json.loads(data)
    except ValueError as error:
        raise InvalidInput(kind.__name__, data[:40], "must be JSON") from error
    if not isinstance(given, dict):
        raise InvalidInput(kind.__name__, type(given).__name__, "must be an object")
    values: dict[str, Any] = {}
    for field in fields(kind):
        value, allowed = given.get(field.name), _JSON_TYPES[field.type]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise InvalidInput(f"{kind.__name__}.{field.name}", value, f"must be of type {field.type}")
        values[field.name] = value
    load = values.get("load", {})
    for name, number in load.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidInput(f"{kind.__name__}.load.{name}", number, "must be a number")
    return kind(**values)
