"""Names of this replica and of its pieces of work, unique over all replicas and their restarts."""

import itertools
import secrets


class WorkIds:
    def __init__(self, scheduler: str) -> None:
        """`scheduler` is the replica's configured name; each start of it gets an `identity` of its own."""
        self.identity = f"{scheduler}.{secrets.token_hex(6)}"
        self._numbers = itertools.count()

    def draw(self) -> str:
        return f"{self.identity}.{next(self._numbers)}"
