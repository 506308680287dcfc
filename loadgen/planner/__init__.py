"""The planner: what a deployment of a DeepSeek-V3-class model will do, before anyone pays for it.

    hardware, model_shapes          data: what a GPU and a model are
    operations -> efficiency        one kernel: FLOPs and bytes, then microseconds
    communication                   one dispatch, one combine
    schedule -> layer -> step       five stages on two resources, then a whole pass of the model
    memory                          what fits, to the byte
    deployment, pareto, ratio       a sweep, its front, and how to split GPUs between prefill and decode
    published, measured, fit        what others and we have measured, and the constants that follow

The small Python API is re-exported here; everything is a function of plain data and nothing needs a GPU.
"""

from loadgen.planner.deployment import DecodePlan, DecodePoint, decode_point, sweep
from loadgen.planner.hardware import HARDWARE, Hardware, hardware
from loadgen.planner.layer import LayerTime, Schedule, decode_layer, prefill_layer
from loadgen.planner.memory import MemoryUse, decode_memory
from loadgen.planner.model_shapes import ModelShape, model_shape
from loadgen.planner.pareto import pareto_front
from loadgen.planner.ratio import Fleet, Recommendation, recommend, smallest_fleet
from loadgen.planner.stacks import STACKS, Stack, stack
from loadgen.planner.step import StepTime, decode_step, prefill_pass
from loadgen.planner.workload import Workload, workload

__all__ = [
    "HARDWARE",
    "STACKS",
    "DecodePlan",
    "DecodePoint",
    "Fleet",
    "Hardware",
    "LayerTime",
    "MemoryUse",
    "ModelShape",
    "Recommendation",
    "Schedule",
    "Stack",
    "StepTime",
    "Workload",
    "decode_layer",
    "decode_memory",
    "decode_point",
    "decode_step",
    "hardware",
    "model_shape",
    "pareto_front",
    "prefill_layer",
    "prefill_pass",
    "recommend",
    "smallest_fleet",
    "stack",
    "sweep",
    "workload",
]
