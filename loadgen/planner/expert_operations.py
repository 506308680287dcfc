"""Stages 3 and 4 of a layer: gate, shared expert, routed experts; and the feed-forward block of a dense layer."""

from dataclasses import dataclass
from statistics import NormalDist

from common.errors import InvalidInput
from loadgen.planner.linear import linear_bytes, linear_precision
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.operations import KernelClass, Operation, collective, elementwise, gemm, grouped_gemm


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Routed experts of the hottest rank; in lock-step every other rank waits for it.

    Attributes:
        slots: experts held, copies included.
        active: slots that receive at least one token.
        rows: token rows that arrive.
        mean_active, mean_rows: the same averaged over all ranks.
    """

    slots: int
    active: float
    rows: float
    mean_active: float
    mean_rows: float

    @property
    def rows_per_active(self) -> float:
        return self.rows / self.active if self.active else 0.0


def expert_load(
    model: ModelShape,
    tokens_per_rank: float,
    ep: int,
    *,
    redundant: int = 0,
    imbalance: float = 1.0,
    chance: bool = True,
) -> ExpertLoad:
    """Spread `tokens_per_rank` x `ep` tokens over the experts.

    A slot stays idle with probability (1 - top_k / slots) ** tokens. With `chance` the hottest of `ep` ranks is
    above the mean by the expected maximum of `ep` normal draws: Bernoulli slots for `active`, Poisson rows for
    `rows`. `imbalance` multiplies the rows on top: what the router prefers, not what chance adds.
    """
    slots = model.experts + redundant
    if redundant < 0:
        raise InvalidInput("redundant_experts", redundant, "at least 0")
    if ep < 1 or slots % ep:
        raise InvalidInput("ep", ep, f"a divisor of the {slots} experts ({model.experts} + {redundant} copies)")
    if not 1 <= imbalance <= slots:
        raise InvalidInput("imbalance", imbalance, f"1 to {slots}, the hottest rank over the mean")
    held = slots // ep
    busy = -_expm1_power(model.top_k / slots, tokens_per_rank * ep)
    mean_active, mean_rows = held * busy, tokens_per_rank * model.top_k
    above = expected_maximum(ep) if chance else 0.0
    active = min(mean_active + above * (held * busy * (1 - busy)) ** 0.5, held)
    rows = (mean_rows + above * mean_rows**0.5) * imbalance if ep > 1 else mean_rows
    # Fewer rows than active slots cannot be.
    return ExpertLoad(held, min(active, rows), rows, mean_active, mean_rows)


def expected_maximum(draws: int) -> float:
    """Mean of the largest of `draws` standard normal draws (Blom's approximation); 0 for one."""
    return NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


def gate_operation(model: ModelShape, tokens: float) -> Operation:
    """fp32 or bf16 [tokens, hidden] x [hidden, experts], then group-limited top-k and counts."""
    flops = 2 * tokens * model.hidden * model.experts
    moved = tokens * (2 * model.hidden + 8 * model.experts) + model.gate_bytes()
    return Operation("gate", 2, KernelClass.GATE, "bf16", flops, moved, padded_flops=flops)


def shared_operations(model: ModelShape, tokens: float) -> list[Operation]:
    """Stage 3: the shared expert, replicated on every rank."""
    if not model.shared_experts:
        return []
    inner = model.shared_experts * model.expert_intermediate
    return _mlp("shared", 3, tokens, inner, model)


def routed_operations(model: ModelShape, load: ExpertLoad) -> list[Operation]:
    """Stage 4: gate and up, SiLU and quantisation, down, over the active experts of one rank."""
    h, inner, precision = model.hidden, model.expert_intermediate, linear_precision(model)
    rows = load.rows_per_active
    return [
        grouped_gemm(
            "experts gate-up", 4, load.active, rows, 2 * inner, h, linear_bytes(model, 2 * inner, h), precision
        ),
        elementwise("experts silu, quantise", 4, load.rows * inner * 5),
        grouped_gemm("experts down", 4, load.active, rows, h, inner, linear_bytes(model, h, inner), precision),
    ]


def dense_operations(model: ModelShape, tokens: float, tp: int) -> list[Operation]:
    """The feed-forward block of one of the leading dense layers, sharded over TP."""
    operations = _mlp("dense", 4, tokens, model.dense_intermediate / tp, model)
    if tp > 1:
        operations.append(collective("all-reduce", 4, 2 * tokens * model.hidden * 2 * (tp - 1) / tp))
    return operations


def _mlp(name: str, stage: int, tokens: float, inner: float, model: ModelShape) -> list[Operation]:
    h, precision = model.hidden, linear_precision(model)
    return [
        gemm(f"{name} gate-up", stage, tokens, 2 * inner, h, linear_bytes(model, 2 * inner, h), precision),
        elementwise(f"{name} silu, quantise", stage, tokens * inner * 5),
        gemm(f"{name} down", stage, tokens, h, inner, linear_bytes(model, h, inner), precision),
    ]


def _expm1_power(probability: float, count: float) -> float:
    """(1 - probability) ** count - 1, exact for small probabilities."""
    if probability >= 1:
        return -1.0
    return float((1.0 - probability) ** count - 1.0)
