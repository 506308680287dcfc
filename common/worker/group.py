"""How the ranks of one EP group meet: transports, exchange, lock-step, and the end they agree on."""

from dataclasses import dataclass

from common.config.place import RankPlace
from common.engine.step_gate import AloneGate, StepGate
from common.model.batch import Schedule
from common.parallel.base import AllToAll, TensorGroup
from common.parallel.exchange import Exchange
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.groups import Topology, tensor_group
from common.parallel.in_process import InProcessTransport

SCHEDULES = {
    "none": Schedule.NONE,
    "dispatch_overlap": Schedule.DISPATCH_OVERLAP,
    "dual_microbatch": Schedule.DUAL_MICROBATCH,
}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's ties to its group."""

    topology: Topology
    all_to_all: AllToAll
    tensor_group: TensorGroup
    gate: StepGate


def join_group(place: RankPlace, experts: int, schedule: str, rendezvous: str) -> RankGroup:
    """Meet the other ranks, if there are any."""
    topology = Topology(place.rank, place.parallel.ep, place.parallel.tp)
    (transport,) = InProcessTransport.group(1)
    exchange = Exchange(transport, ExpertPlacement.contiguous(experts, topology.world))
    return RankGroup(topology, exchange, tensor_group(topology, transport), AloneGate(SCHEDULES[schedule]))
