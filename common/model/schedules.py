"""Orders in which the stages of the layers run. Any of them gives the same result.

The number of waits of a pass depends on the schedule (and on `tp`) alone: a rank without tokens runs the same one with
empty microbatches, since other ranks may need its experts.
"""

from collections.abc import Callable, Sequence

from common.errors import InternalError
from common.model.batch import Schedule
from common.model.layer import DecoderLayer, Microbatch
from common.parallel.waits import Waits, ready

# The second microbatch follows the first by this many stages: its attention (1, 2) covers the first one's dispatch
# and combine, and the other way round one layer later.
MICROBATCH_OFFSET = 3

Stage = Callable[[Microbatch], Waits[None]]


def run_expert_layers(
    layers: Sequence[DecoderLayer], microbatches: Sequence[Microbatch], schedule: Schedule
) -> Waits[None]:
    """Take the microbatches (two for DUAL_MICROBATCH, else one) through layers that have experts."""
    if len(microbatches) != microbatch_count(schedule):
        raise InternalError(f"{len(microbatches)} microbatches for {schedule.name}")
    stages = [stage for layer in layers for stage in _stages(layer, schedule)]
    if schedule is not Schedule.DUAL_MICROBATCH:
        for stage in stages:
            yield from stage(microbatches[0])
        return
    first, second = microbatches
    for turn in range(len(stages) + MICROBATCH_OFFSET):
        # The second goes first in each turn: its computation lies between the first one's sends and receives.
        if turn >= MICROBATCH_OFFSET:
            yield from stages[turn - MICROBATCH_OFFSET](second)
        if turn < len(stages):
            yield from stages[turn](first)


def microbatch_count(schedule: Schedule) -> int:
    return 2 if schedule is Schedule.DUAL_MICROBATCH else 1


def _stages(layer: DecoderLayer, schedule: Schedule) -> tuple[Stage, ...]:
    def dispatch(m: Microbatch) -> Waits[None]:
        layer.dispatch(m, shared_first=schedule is Schedule.NONE)
        return ready(None)

    return layer.project, layer.attend, dispatch, layer.expert, layer.combine
