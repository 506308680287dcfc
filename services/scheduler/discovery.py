"""Which instances there should be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KnownInstance:
    """A worker's lease: its name, role and address, and whether it says that it drains."""

    instance: str
    role: str
    address: str
    incarnation: int
    draining: bool = False


class Discovery(Protocol):
    async def list(self) -> Sequence[KnownInstance]:
        """All instances with a lease.

        Raises:
            DependencyUnavailable: nobody can say now; what is known stays.
        """
        ...
