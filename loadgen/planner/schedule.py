"""A layer as five stages on two resources, compute and network, under three schedules.

The stages are the report's: (1) input norm, projections, append, absorb; (2) attention, output projection, post norm,
gate; (3) dispatch send, shared expert; (4) dispatch receive, experts, combine send; (5) combine receive.

Compute runs one thing at a time, in program order. The network carries exchanges one after the other beside it. What
a receive waits for is time exposed. The programs:

    none       A1 A2 send wait shared A4 send wait A5
    dispatch   A1 A2 send shared wait A4 send wait A5
    dual       B1 A4 | B2 A5 | B3 A1' | B4 A2' | B5 A3'    stage by stage, three apart

In the dual schedule B1 covers the dispatch of A, B2 (attention) its combine, A1' the dispatch of B, A2' its combine.
That reading of "executed alternately, with an offset of three stages" is the only one of the orders we tried that
gives the report's exposed times: dispatch mostly exposed (stage 1 is short), combine mostly hidden (attention is
long).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Schedule(StrEnum):
    NONE = "none"
    DISPATCH_OVERLAP = "dispatch overlap"
    DUAL_MICROBATCH = "dual microbatch"


@dataclass(frozen=True, slots=True)
class Flight:
    """One exchange: `busy_us` on the compute resource (launches, NVLink stores), then `flight_us` on the network."""

    busy_us: float
    flight_us: float


@dataclass(frozen=True, slots=True)
class Stages:
    """One (micro)batch through one layer: compute time of stages 1 to 5 without exchanges, and the two exchanges."""

    compute_us: tuple[float, float, float, float, float]
    dispatch: Flight
    combine: Flight


@dataclass(slots=True)
class Timeline:
    """Where the time of a simulated run of layers went."""

    now_us: float = 0.0
    network_free_us: float = 0.0
    exposed_us: dict[str, float] = field(default_factory=lambda: {"dispatch": 0.0, "combine": 0.0})
    contention_us: float = 0.0
    busy_network_us: float = 0.0


# One step of a program: (microbatch, what), where what is a stage number or "send"/"wait" of an exchange.
_Step = tuple[int, str]
_NONE: tuple[_Step, ...] = tuple(
    (0, what) for what in ("1", "2", "send dispatch", "wait dispatch", "3", "4", "send combine", "wait combine", "5")
)
_DISPATCH: tuple[_Step, ...] = tuple(
    (0, what) for what in ("1", "2", "send dispatch", "3", "wait dispatch", "4", "send combine", "wait combine", "5")
)
_STAGES: dict[int, tuple[str, ...]] = {
    1: ("1",),
    2: ("2",),
    3: ("send dispatch", "3"),
    4: ("wait dispatch", "4", "send combine"),
    5: ("wait combine", "5"),
}
_DUAL: tuple[_Step, ...] = tuple(
    (microbatch, what)
    for microbatch, stage in ((1, 1), (0, 4), (1, 2), (0, 5), (1, 3), (0, 1), (1, 4), (0, 2), (1, 5), (0, 3))
    for what in _STAGES[stage]
)
_WARM_LAYERS, _COUNTED_LAYERS = 2, 2


@dataclass(frozen=True, slots=True)
class Span:
    """One layer in the steady state.

    Attributes:
        total_us: time from one layer to the next.
        dispatch_us, combine_us: exchange time on the critical path, busy and exposed.
        contention_us: compute slowed by multiprocessors that exchanges hold while in flight.
        network_us: time the network was busy.
    """

    total_us: float
    dispatch_us: float
    combine_us: float
    contention_us: float
    network_us: float


def layer_span(schedule: Schedule, batches: Sequence[Stages], contention: float = 0.0) -> Span:
    """Run one layer after another until it repeats, and report one period.

    Args:
        schedule: which program.
        batches: one `Stages`, or two for the dual schedule.
        contention: share of compute lost while an exchange is in flight beside it, 0 <= contention < 1.
    """
    program = {Schedule.NONE: _NONE, Schedule.DISPATCH_OVERLAP: _DISPATCH, Schedule.DUAL_MICROBATCH: _DUAL}[schedule]
    timeline = Timeline()
    landed: dict[tuple[int, str], float] = {}
    for _ in range(_WARM_LAYERS):
        _run(program, batches, contention, timeline, landed)
    start = timeline.now_us
    exposed = dict(timeline.exposed_us)
    contended, network = timeline.contention_us, timeline.busy_network_us
    for _ in range(_COUNTED_LAYERS):
        _run(program, batches, contention, timeline, landed)
    return Span(
        (timeline.now_us - start) / _COUNTED_LAYERS,
        (timeline.exposed_us["dispatch"] - exposed["dispatch"]) / _COUNTED_LAYERS,
        (timeline.exposed_us["combine"] - exposed["combine"]) / _COUNTED_LAYERS,
        (timeline.contention_us - contended) / _COUNTED_LAYERS,
        (timeline.busy_network_us - network) / _COUNTED_LAYERS,
    )


def _run(
    program: Sequence[_Step],
    batches: Sequence[Stages],
    contention: float,
    timeline: Timeline,
    landed: dict[tuple[int, str], float],
) -> None:
    for microbatch, what in program:
        stages = batches[microbatch]
        verb, _, exchange = what.partition(" ")
        if verb == "send":
            flight = stages.dispatch if exchange == "dispatch" else stages.combine
            timeline.now_us += flight.busy_us
            timeline.exposed_us[exchange] += flight.busy_us
            begin = max(timeline.now_us, timeline.network_free_us)
            timeline.network_free_us = begin + flight.flight_us
            timeline.busy_network_us += flight.flight_us
            landed[microbatch, exchange] = timeline.network_free_us
        elif verb == "wait":
            wait = max(landed.get((microbatch, exchange), 0.0) - timeline.now_us, 0.0)
            timeline.now_us += wait
            timeline.exposed_us[exchange] += wait
        else:
            _compute(timeline, stages.compute_us[int(verb) - 1], contention)


def _compute(timeline: Timeline, work_us: float, contention: float) -> None:
    """Advance by `work_us` of compute, slower while the network is busy."""
    beside = max(timeline.network_free_us - timeline.now_us, 0.0)
    done_beside = beside * (1 - contention)
    elapsed = work_us / (1 - contention) if work_us <= done_beside else beside + work_us - done_beside
    # A difference of equal floats may fall below zero by a rounding.
    timeline.contention_us += max(elapsed - work_us, 0.0)
    timeline.now_us += elapsed
