"""All ranks of a group over one checkpoint, in this process."""

from pathlib import Path

from common.engine.step_gate import AloneGate, StepGate
from common.model.config import read_model_config
from common.model.load import load_model
from common.parallel.expert_placement import ExpertPlacement
from common.parallel.groups import Topology, exchange, tensor_group
from common.parallel.in_process import InProcessTransport
from common.parallel.lock_step import SchedulePolicy
from common.parallel.schedule import Schedule
from common.parallel.step_gate import LockStepGate
from tests.fakes.engines import Rank
from tests.fakes.wake_flag import InProcessWakeFlag

NEVER = 1 << 30
POLICIES = {
    Schedule.NONE: SchedulePolicy(dual_microbatch_from=NEVER, overlap=False),
    Schedule.DISPATCH_OVERLAP: SchedulePolicy(dual_microbatch_from=NEVER),
    Schedule.DUAL_MICROBATCH: SchedulePolicy(dual_microbatch_from=2),
}


def model_ranks(directory: Path, *, world: int, tp: int, schedule: Schedule) -> list[Rank]:
    """`world` ranks in instances of `tp`; one instance runs every step under `schedule`, several as the policy says."""
    flag = InProcessWakeFlag()
    placement = ExpertPlacement.contiguous(read_model_config(directory).gate.experts, world)
    ranks = []
    for i, transport in enumerate(InProcessTransport.group(world)):
        topology = Topology(i, world, tp)
        group = tensor_group(topology, transport)
        gate: StepGate = LockStepGate(POLICIES[schedule], flag) if world > tp else AloneGate(schedule)
        all_to_all = exchange(transport, placement)
        model = load_model(directory, topology=topology, all_to_all=all_to_all, tensor_group=group)
        ranks.append(Rank(model, group, gate if topology.tp_rank == 0 else None))
    return ranks
