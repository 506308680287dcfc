"""Names of everything in Redis. What is asked for together shares a hash tag, and so a shard of a Redis cluster."""

from dataclasses import dataclass


def hex_incarnation(incarnation: int) -> str:
    """Fixed width, so that scripts compare incarnations as text; their numbers do not hold 64 bits."""
    return f"{incarnation:016x}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one cluster."""

    cluster: str

    @property
    def workers(self) -> str:
        """Set of the names of instances that have, or had, a lease."""
        return f"tandem:{self.cluster}:{{workers}}:names"

    @property
    def worker_prefix(self) -> str:
        """Followed by an instance's name: its lease, a JSON record with a time to live."""
        return f"tandem:{self.cluster}:{{workers}}:lease:"

    @property
    def index_members(self) -> str:
        """Hash: instance -> incarnation whose blocks are in the index."""
        return f"tandem:{self.cluster}:{{index}}:members"

    @property
    def index_prefix(self) -> str:
        """Followed by `instance:incarnation`: the set of chain hashes of its cached blocks."""
        return f"tandem:{self.cluster}:{{index}}:blocks:"
