"""How many leading blocks of a prompt each instance holds. A hint: without it placement goes by load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """`blocks` by instance name. `known` is False when the index did not answer within its budget."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    known: bool = True


class PrefixLookup(Protocol):
    async def lookup(self, root: bytes, hashes: Sequence[bytes]) -> PrefixHits:
        """Never raises and never takes longer than its budget."""
        ...
