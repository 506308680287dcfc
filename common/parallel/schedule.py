"""How a layer's computation and its exchange interleave. Ranks agree on it step by step (lock_step.py)."""

from enum import Enum, auto


class Schedule(Enum):
    """How the five stages of a layer interleave with communication. All give the same result."""

    NONE = auto()
    DISPATCH_OVERLAP = auto()  # the shared expert runs between dispatch send and dispatch receive
    DUAL_MICROBATCH = auto()  # two halves, offset by three stages
