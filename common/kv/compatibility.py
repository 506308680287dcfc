"""May latent move between two instances? Compared field by field, so that a refusal names the field."""

from dataclasses import fields

from common.errors import Incompatible
from common.request import Compatibility


def check_compatible(ours: Compatibility, theirs: Compatibility) -> None:
    """Raise Incompatible with the first differing field."""
    for field in fields(Compatibility):
        our_value, their_value = getattr(ours, field.name), getattr(theirs, field.name)
        if our_value != their_value:
            raise Incompatible(field.name, our_value, their_value)
