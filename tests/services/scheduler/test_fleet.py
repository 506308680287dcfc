"""What placement sees: reports of the right incarnation, in order, with own bookings on top."""

from dataclasses import asdict, replace

import pytest
from prometheus_client import CollectorRegistry

from common.bus.messages import LoadReport
from common.clock import ManualClock
from common.engine.events import EngineLoad
from common.request import Compatibility
from common.rpc.worker_data import InstanceDescription
from services.scheduler.fleet import Fleet, InstanceState
from services.scheduler.hearing import Hearing, engine_load
from services.scheduler.membership import Membership
from services.scheduler.metrics import scheduler_metrics
from services.scheduler.placement import PlacementPolicy
from services.scheduler.settings import SchedulerSettings

SETTINGS = SchedulerSettings("s", placement=PlacementPolicy(block_tokens=16))
COMPATIBILITY = Compatibility("f", "h", "f32", 16, 1, 1, 1)
LOAD = EngineLoad(100, 2, 3, 400, 50, 80, 0.1)


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def fleet(clock):
    fleet = Fleet(clock, SETTINGS)
    for name, role in (("p", "prefill"), ("d", "decode")):
        fleet.add(name, role, "h:1").description = InstanceDescription(name, role, name, 7, COMPATIBILITY, 80, 999, 8)
        fleet.set_state(name, InstanceState.READY)
    return fleet


def test_reports_and_bookings_add_up(fleet, clock):
    fleet.report("p", 7, LOAD)
    fleet.report("d", 7, LOAD)
    clock.advance(0.1)
    fleet.book("p", "w", 30)
    fleet.book("d", "w", 40)
    assert (fleet.prefill_states()[0].queued_tokens, fleet.prefill_states()[0].works) == (130, 6)
    decode = fleet.decode_states()[0]
    assert (decode.running_tokens, decode.sequences) == (540, 6)
    assert decode.free_blocks == 50 - 9  # 100 queued and 40 booked tokens have no blocks yet
    fleet.close("p", "w")
    assert fleet.prefill_states()[0].queued_tokens == 100


def test_infos_say_seats_queue_and_the_age_of_what_they_say(fleet, clock):
    assert [info.report_age_ms for info in fleet.infos()] == [-1, -1]
    fleet.report("d", 7, LOAD)
    clock.advance(1.5)
    info = fleet.infos()[1]
    assert (info.queued, info.running, info.max_running, info.report_age_ms) == (2, 3, 8, 1500)
    assert info.busy > 0
    assert fleet.infos()[1].tokens_per_s == 0.0


def test_how_fast_a_prefill_instance_is_it_says_itself(fleet):
    def rates(of):
        return of.prefill_states()[0].tokens_per_s, of.infos()[0].tokens_per_s

    assert rates(fleet) == (SETTINGS.prefill_tokens_per_s,) * 2  # an older version that does not say
    known = fleet.get("p")
    known.description = replace(known.description, tokens_per_s=500.0)  # known before the first request
    assert rates(fleet) == (500.0, 500.0)
    fleet.report("p", 7, LOAD)
    assert rates(fleet) == (500.0, 500.0)
    fleet.report("p", 7, replace(LOAD, tokens_per_s=700.0))
    assert rates(fleet) == (700.0, 700.0)


def test_an_old_report_is_no_report(fleet, clock):
    fleet.report("p", 7, LOAD)
    clock.advance(10.0)
    fleet.book("p", "w", 30)
    assert fleet.prefill_states()[0].queued_tokens == 30


def test_without_reports_nothing_is_kept_of_work_that_has_ended(fleet, clock):
    fleet.report("p", 7, LOAD)
    for number in range(100):
        clock.advance(1.0)
        fleet.book("p", f"w{number}", 30)
        fleet.close("p", f"w{number}")
    assert len(fleet.get("p").bookings.closed) <= 1 + SETTINGS.membership.report_fresh_s
    fleet.report("p", 7, LOAD)
    assert fleet.prefill_states()[0].queued_tokens == LOAD.queued_tokens


def test_another_incarnation_is_not_heard(fleet):
    fleet.report("p", 6, LOAD)
    assert fleet.prefill_states()[0].queued_tokens == 0


def test_only_ready_instances_are_candidates(fleet):
    fleet.set_state("p", InstanceState.DRAINING)
    fleet.set_state("d", InstanceState.SUSPECT)
    assert fleet.prefill_states() == fleet.decode_states() == []
    assert {info.state for info in fleet.infos()} == {"draining", "suspect"}


FATES = ("missed", "refused")


async def test_the_bus_may_repeat_and_reorder(fleet, clock):
    membership = Membership(fleet, None, "s", clock, SETTINGS.membership)
    registry = CollectorRegistry()
    hearing = Hearing(fleet, membership, scheduler_metrics(registry, "m"))
    for sequence, queued in ((1, 10), (3, 30), (2, 20), (3, 30)):
        hearing.hear_load(LoadReport("p", 7, sequence, asdict(replace(LOAD, queued_tokens=queued))))
    assert fleet.prefill_states()[0].queued_tokens == 30
    counts = [registry.get_sample_value(f"tandem_load_reports_{what}_total", {"model": "m"}) for what in FATES]
    assert counts == [1, 2]
    hearing.hear_load(LoadReport("unknown", 7, 1, asdict(LOAD)))
    hearing.hear_load(LoadReport("p", 7, 4, {"queued_tokens": 5.0}))
    assert fleet.prefill_states()[0].queued_tokens == 30


def test_a_load_crosses_the_bus_unchanged():
    assert engine_load(LoadReport("p", 1, 1, asdict(LOAD))) == LOAD


def test_utilisation_is_the_share_of_busy_time(fleet):
    for number in range(4000):
        fleet.report("p", 7, replace(LOAD, queued=0, running=int(number % 10 < 7)))
    assert fleet.utilisation() == pytest.approx(0.7, abs=0.05)
