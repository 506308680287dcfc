"""Which rank holds which expert: data, so that redundant experts and rebalancing change a table and nothing else."""

from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Logical experts in the physical slots of every rank.

    Attributes:
        experts: number of logical experts.
        by_rank: for each rank the logical experts of its slots in order. An expert may be on several ranks; ranks may
            hold different numbers, none included.

    Raises:
        ConfigError: an id outside the experts, an expert nowhere, or twice on one rank.
    """

    experts: int
    by_rank: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for rank, local in enumerate(self.by_rank):
            outside = [e for e in local if not 0 <= e < self.experts]
            if outside:
                raise ConfigError(f"expert placement: rank {rank} holds {outside[0]}: must be below {self.experts}")
            if len(set(local)) != len(local):
                raise ConfigError(f"expert placement: rank {rank} holds an expert twice: {local}")
        missing = set(range(self.experts)).difference(*self.by_rank)
        if missing:
            raise ConfigError(f"expert placement: expert {min(missing)} is on no rank")

    @classmethod
    def contiguous(cls, experts: int, ranks: int) -> "ExpertPlacement":
        """Each expert once, in order, as evenly as the numbers divide."""
        bounds = [experts * rank // ranks for rank in range(ranks + 1)]
        return cls(experts, tuple(tuple(range(bounds[r], bounds[r + 1])) for r in range(ranks)))

    @property
    def ranks(self) -> int:
        return len(self.by_rank)

    def copies(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each logical expert (rank, index on that rank) of its copies, by rank."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.experts)]
        for rank, local in enumerate(self.by_rank):
            for index, expert in enumerate(local):
                found[expert].append((rank, index))
        return tuple(tuple(copies) for copies in found)
