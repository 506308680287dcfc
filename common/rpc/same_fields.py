"""Messages and plain data that name their fields alike; what differs between the two is written out by hand."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any


def same(kind: type, source: object, *, besides: Collection[str] = ()) -> dict[str, Any]:
    """Fields of the dataclass `kind` as keywords, out of `source`, one of it or its message, for the other of the two.

    Args:
        besides: fields that the caller converts.
    """
    return {one.name: getattr(source, one.name) for one in fields(kind) if one.name not in besides}
