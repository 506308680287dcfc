"""Where a rank stands: in its EP group, in its instance, and with which transports."""

from dataclasses import dataclass

from common.errors import ConfigError
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.exchange import Exchange
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.local_exchange import LocalExchange
from common.parallel.tensor_group import SingleRank, TransportGroup
from common.parallel.transport import Members, Transport


@dataclass(frozen=True, slots=True)
class Topology:
    """One rank of an EP group of `world` ranks, whose instances have `tp` consecutive ranks each.

    Raises:
        ConfigError: `tp` does not divide `world`, or `rank` is outside it.
    """

    rank: int = 0
    world: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ConfigError(f"rank = {self.rank}: must be from 0 to below world = {self.world}")
        if self.tp < 1 or self.world % self.tp:
            raise ConfigError(f"tp = {self.tp}: must divide world = {self.world}")

    @property
    def instance(self) -> int:
        return self.rank // self.tp

    @property
    def instances(self) -> int:
        return self.world // self.tp

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def tp_ranks(self) -> range:
        """The ranks of this rank's instance, by their number in the EP group."""
        return range(self.instance * self.tp, (self.instance + 1) * self.tp)


def exchange(transport: Transport, placement: ExpertPlacement) -> AllToAll:
    """One rank's end of its EP group's exchange."""
    if transport.ranks == 1 and placement == ExpertPlacement.contiguous(placement.experts, 1):
        return LocalExchange(placement.experts)
    return Exchange(transport, placement)


def tensor_group(topology: Topology, transport: Transport) -> TensorGroup:
    """The tensor-parallel group of one rank, over the transport of its whole EP group."""
    if topology.tp == 1:
        return SingleRank()
    return TransportGroup(Members(transport, topology.tp_ranks))
