"""Decode deployments: one point, and the sweep over parallelism, batch and schedule."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from common.errors import InvalidInput
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import Z90, Parallelism, Schedule
from loadgen.planner.memory import MemoryUse, decode_memory
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.speculation import tokens_per_step
from loadgen.planner.stacks import Stack
from loadgen.planner.step import StepTime, decode_step


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What to deploy and what it meets.

    Attributes:
        model, gpu, stack: the data to reckon with.
        cached_tokens: mean length of a request in the cache.
        draft_tokens, acceptance: speculation; the query length is `draft_tokens + 1`.
        redundant_experts, imbalance: copies of hot experts, and the hottest rank over the mean that is left.
    """

    model: ModelShape
    gpu: Hardware
    stack: Stack
    cached_tokens: float = 5000.0
    draft_tokens: int = 1
    acceptance: float = 0.6
    redundant_experts: int = 0
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens < inf:
            raise InvalidInput("cached_tokens", self.cached_tokens, "at least 0, and finite")
        if self.draft_tokens and not self.model.mtp_layers:
            raise InvalidInput("draft_tokens", self.draft_tokens, f"0: {self.model.name} has no draft layer")
        tokens_per_step(self.acceptance, self.draft_tokens)

    def cut(self, ep: int, tp: int) -> Parallelism:
        return Parallelism(ep, tp, self.redundant_experts, self.imbalance)


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One decode deployment in the steady state, every instance full.

    Attributes:
        ep, tp, batch, schedule: what it is; `batch` is requests in an instance.
        step: time of one step.
        memory: bytes on one GPU.
        tokens_per_step: mean tokens a request gains a step.
        output_tokens_per_s: speed of one request.
        node_tokens_per_s: output of one node of `gpus_per_node` GPUs.
        gpu_tokens_per_s: output of one GPU.
        limiter, bound_by: the largest part of the layer's time, and what holds most of it back.
    """

    ep: int
    tp: int
    batch: int
    schedule: Schedule
    step: StepTime
    memory: MemoryUse
    tokens_per_step: float
    output_tokens_per_s: float
    node_tokens_per_s: float
    gpu_tokens_per_s: float
    limiter: str
    bound_by: str

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of both speeds, as factors on the best estimate."""
        relative = Z90 * self.step.sigma_us / self.step.total_us
        return 1 / (1 + relative), 1 / max(1 - relative, 0.05)


def decode_point(plan: DecodePlan, *, ep: int, tp: int, batch: int, schedule: Schedule | None = None) -> DecodePoint:
    """One deployment; with no schedule given, the one with the shortest step.

    Raises:
        InvalidInput: experts that do not divide, TP over heads or over a node, or memory that does not hold.
    """
    cut = plan.cut(ep, tp)
    memory = decode_memory(
        plan.model,
        plan.gpu,
        cut,
        batch=batch,
        query_tokens=plan.draft_tokens + 1,
        tokens_each=plan.cached_tokens,
        mtp=plan.draft_tokens > 0,
    )
    memory.require_fit("batch", batch)
    choices = [schedule] if schedule else [s for s in Schedule if batch > 1 or s is not Schedule.DUAL_MICROBATCH]
    return min((_point(plan, cut, batch, choice, memory) for choice in choices), key=lambda p: p.step.total_us)


def sweep(
    plan: DecodePlan,
    *,
    eps: Iterable[int],
    tps: Iterable[int],
    batches: Iterable[int],
    schedules: Sequence[Schedule | None] = (None,),
) -> tuple[list[DecodePoint], list[tuple[str, InvalidInput]]]:
    """Every combination that exists and fits, and why each of the others does not."""
    points: list[DecodePoint] = []
    refused: list[tuple[str, InvalidInput]] = []
    tps, batches = list(tps), list(batches)
    for ep in eps:
        for tp in tps:
            for batch in batches:
                for schedule in schedules:
                    try:
                        points.append(decode_point(plan, ep=ep, tp=tp, batch=batch, schedule=schedule))
                    except InvalidInput as error:
                        refused.append((f"EP{ep} TP{tp} batch {batch}", error))
    return points, refused


def _point(plan: DecodePlan, cut: Parallelism, batch: int, schedule: Schedule, memory: MemoryUse) -> DecodePoint:
    step = decode_step(
        plan.model,
        plan.gpu,
        plan.stack,
        cut,
        batch=batch,
        cached_tokens=plan.cached_tokens,
        schedule=schedule,
        draft_tokens=plan.draft_tokens,
    )
    gained = tokens_per_step(plan.acceptance, plan.draft_tokens)
    speed = gained / step.total_us * 1e6
    per_gpu = speed * batch / cut.tp
    return DecodePoint(
        cut.ep,
        cut.tp,
        batch,
        schedule,
        step,
        memory,
        gained,
        speed,
        per_gpu * plan.gpu.gpus_per_node,
        per_gpu,
        step.layer.limiter,
        step.layer.bound_by,
    )
