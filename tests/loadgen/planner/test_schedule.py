"""The event model of five stages, against hand-computed layers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.planner.schedule import Flight, Schedule, Stages, layer_span

STAGES = Stages((10.0, 40.0, 5.0, 20.0, 2.0), Flight(1.0, 30.0), Flight(1.0, 50.0))


def test_without_overlap_everything_adds_up():
    span = layer_span(Schedule.NONE, [STAGES])
    assert span.total_us == pytest.approx(10 + 40 + 1 + 30 + 5 + 20 + 1 + 50 + 2)
    assert (span.dispatch_us, span.combine_us) == (31.0, 51.0)


def test_dispatch_overlap_hides_the_shared_expert():
    span = layer_span(Schedule.DISPATCH_OVERLAP, [STAGES])
    assert span.total_us == pytest.approx(159 - 5)
    assert span.dispatch_us == pytest.approx(31 - 5)


def test_two_microbatches_cover_dispatch_with_stage_one_and_combine_with_attention():
    half = Stages((5.0, 22.0, 3.0, 11.0, 1.0), Flight(1.0, 15.0), Flight(1.0, 25.0))
    span = layer_span(Schedule.DUAL_MICROBATCH, [half, half])
    # Dispatch flies behind its own shared expert (3) and the peer's stage 1 (5): 7 are exposed. Combine flies behind
    # the peer's stage 2 (22): 3 are exposed. The peer's send between them costs nothing more.
    assert span.dispatch_us == pytest.approx(2 * (1 + 15 - 3 - 5))
    assert span.combine_us == pytest.approx(2 * (1 + 25 - 22))
    assert span.total_us == pytest.approx(2 * (5 + 22 + 3 + 11 + 1) + span.dispatch_us + span.combine_us)


def test_everything_hides_when_compute_is_long():
    half = Stages((50.0, 90.0, 9.0, 30.0, 3.0), Flight(0.0, 15.0), Flight(0.0, 25.0))
    span = layer_span(Schedule.DUAL_MICROBATCH, [half, half])
    assert span.total_us == pytest.approx(2 * 182.0)
    assert span.network_us == pytest.approx(80.0)


def test_shared_multiprocessors_slow_only_what_runs_beside_an_exchange():
    free = layer_span(Schedule.DISPATCH_OVERLAP, [STAGES])
    taken = layer_span(Schedule.DISPATCH_OVERLAP, [STAGES], contention=0.2)
    assert taken.contention_us == pytest.approx(5 / 0.8 - 5)
    # The exchange is longer than the shared expert: the slower expert still hides.
    assert taken.total_us == pytest.approx(free.total_us)


times = st.floats(0, 1000)
flights = st.builds(Flight, times, times)
stages = st.builds(Stages, st.tuples(times, times, times, times, times), flights, flights)


@given(one=stages, two=stages)
@settings(max_examples=60, deadline=None)
def test_no_schedule_beats_either_resource(one, two):
    for schedule, batches in (
        (Schedule.NONE, [one]),
        (Schedule.DISPATCH_OVERLAP, [one]),
        (Schedule.DUAL_MICROBATCH, [one, two]),
    ):
        span = layer_span(schedule, batches)
        busy = sum(sum(b.compute_us) + b.dispatch.busy_us + b.combine.busy_us for b in batches)
        network = sum(b.dispatch.flight_us + b.combine.flight_us for b in batches)
        assert span.total_us >= busy * (1 - 1e-9) - 1e-6
        assert span.total_us >= network * (1 - 1e-9) - 1e-6
        assert span.network_us == pytest.approx(network, abs=1e-6)


@given(one=stages)
@settings(max_examples=60, deadline=None)
def test_overlap_is_never_slower_without_contention(one):
    none, overlap = layer_span(Schedule.NONE, [one]), layer_span(Schedule.DISPATCH_OVERLAP, [one])
    assert overlap.total_us <= none.total_us * (1 + 1e-9) + 1e-6
