"""Reading the fields of a JSON object that a client wrote: each has its type, or is refused by its name. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from common.errors import InvalidInput

_KINDS: Mapping[type, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
_TOKEN_ID = re.compile(r"-?[0-9]{1,19}")

# Field -> the values at which it is understood, all of which mean "nothing".
Absent = Mapping[str, tuple[object, ...]]


def get(fields: Mapping[str, Any], name: str, kind: type, *, below: str = "") -> Any:  # noqa: ANN401
    """The field's value of this JSON type; None when absent or null. `below` is the object's own name and a dot."""
    value = fields.get(name)
    if value is None:
        return None
    if kind is float and is_int(value):
        try:
            return float(value)
        except OverflowError as error:
            raise InvalidInput(below + name, value, "must fit a float") from error
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(below + name, value, f"must be {_KINDS[kind]}")
    return value


def refuse_others(fields: Mapping[str, Any], known: Collection[str], absent: Absent, *, below: str = "") -> None:
    """Refuse what is neither known nor one of the values that mean nothing."""
    for name, value in fields.items():
        if name in absent:
            if not any(type(value) is type(nothing) and value == nothing for nothing in absent[name]):
                raise InvalidInput(below + name, value, "not supported here")
        elif name not in known:
            raise InvalidInput(below + name, value, "no such field")


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def stops(value: object) -> tuple[str, ...]:
    """One text, a list of texts, or null."""
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise InvalidInput("stop", value, "a text or a list of texts")
    return tuple(values)


def id_list(name: str, values: list[Any]) -> tuple[int, ...]:
    if not all(is_int(value) for value in values):
        raise InvalidInput(name, values, "a list of token ids")
    return tuple(values)


def biases(given: Mapping[str, Any]) -> dict[int, float]:
    """Token ids, which JSON can only spell as texts, to numbers."""
    read = {}
    for token, bias in given.items():
        if _TOKEN_ID.fullmatch(token) is None:
            raise InvalidInput("logit_bias", token, "a token id")
        value = get({token: bias}, token, float, below="logit_bias.")
        if value is None:
            raise InvalidInput(f"logit_bias.{token}", None, "must be a number")
        read[int(token)] = value
    return read
