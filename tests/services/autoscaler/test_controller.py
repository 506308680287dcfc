"""The whole loop: real client and API server double, real gRPC schedulers, real NATS."""

import asyncio
import time
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from common.bus.connection import connect_bus
from common.bus.messages import HoldNotice
from common.bus.subjects import Subjects
from common.clock import ManualClock, MonotonicClock
from common.config.load import parse_cluster
from services.autoscaler.controller import Controller
from services.autoscaler.leader import Leadership
from services.autoscaler.metrics import autoscaler_metrics
from services.autoscaler.observe import SchedulerWatch
from services.autoscaler.pool_watch import PoolWatch
from services.autoscaler.surroundings import Surroundings
from services.autoscaler.workloads import workloads
from tests.fakes.kubernetes_api import disruption_budget, leader_worker_set
from tests.fakes.scheduler_view import FakeSchedulerView, instance

LWS = "leaderworkersets"
SETTINGS = {"down_after_s": 60.0, "down_cooldown_s": 0.0, "stale_after_s": 10.0}


class Bench:
    """A controller with a clock of its own; `tick` is one interval."""

    def __init__(self, kubernetes, schedulers, controller, around, registry, clock, subjects):
        self.kubernetes, self.schedulers, self.controller = kubernetes, schedulers, controller
        self.around, self.registry, self.clock, self.subjects = around, registry, clock, subjects
        self.heard = []

    async def tick(self, count=1):
        for _ in range(count):
            self.clock.advance(5.0)
            await asyncio.to_thread(self.around.leadership.step)
            await self.controller.tick()

    async def held(self):
        """Whom it asked to hold so far: what it said before this notice of ours has arrived with it."""
        last = HoldNotice("last", len(self.heard), 0.0)
        await self.around.bus.publish(self.subjects.hold(last.instance), last)
        await until(lambda: last in self.heard)
        return {(one.instance, one.incarnation) for one in self.heard if one.instance != last.instance}

    def groups(self, role):
        return self.kubernetes.get(LWS, f"tandem-{role}")["spec"]["replicas"]

    def show(self, *instances, **more):
        for one in self.schedulers:
            one.show(*instances, **more)

    def failures(self, reason):
        return self.registry.get_sample_value("tandem_autoscaler_failures_total", {"model": "m", "error_type": reason})


async def until(condition, within_s=10.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true in time"
        await asyncio.sleep(0.01)


@pytest.fixture
async def bench(kubernetes, api, nats_url, cluster):
    schedulers = [FakeSchedulerView(), FakeSchedulerView()]
    for one in schedulers:
        await one.start()
    document = {
        "cluster": cluster,
        "model": {"path": "x", "name": "m"},
        "prefill": {"parallel": {"groups": 4}},
        "decode": {"parallel": {"groups": 4}},
        "autoscaler": {**SETTINGS, "schedulers": [one.address for one in schedulers]},
    }
    config = parse_cluster(document, "test")
    for role in ("prefill", "decode"):
        kubernetes.put(LWS, leader_worker_set(role, 2))
    clock, registry = ManualClock(1000.0), CollectorRegistry()
    kind = workloads("LeaderWorkerSet")
    bus = await connect_bus(nats_url, "autoscaler", 2.0, 5.0)
    ear = await connect_bus(nats_url, "scheduler", 2.0, 5.0)
    picture = PoolWatch(api, kind, config.autoscaler.selector, MonotonicClock(), window_s=1)
    around = Surroundings(
        api,
        kind,
        picture,
        SchedulerWatch(config.autoscaler.schedulers, 2.0),
        bus,
        Leadership(api, "me", config.autoscaler, clock),
        autoscaler_metrics(registry, "m"),
        clock,
    )
    picture.start()
    await until(lambda: len(picture.pools()) == 2)
    made = Bench(kubernetes, schedulers, Controller(config, around), around, registry, clock, Subjects(cluster))
    await ear.subscribe(made.subjects.all_holds, HoldNotice, made.heard.append)
    await ear.flush(5.0)
    yield made
    await around.schedulers.close()
    await ear.close()
    await bus.close()
    await asyncio.to_thread(picture.close)
    for one in schedulers:
        await one.stop()


def quiet(prefill=2, decode=2, **facts):
    return [instance("prefill", i, **facts) for i in range(prefill)] + [
        instance("decode", i, running=7, **facts) for i in range(decode)
    ]


async def test_a_queue_brings_groups(bench):
    bench.show(*(instance("prefill", i, queued_tokens=3500) for i in range(2)), *quiet(0, 2))
    await bench.tick(5)
    assert (bench.groups("prefill"), bench.groups("decode")) == (4, 2)
    sample = bench.registry.get_sample_value
    assert sample("tandem_autoscaler_predicted_seconds", {"model": "m", "role": "prefill"}) == 3.5
    assert sample("tandem_autoscaler_leads", {"model": "m"}) == 1.0


async def test_what_waits_in_each_scheduler_is_added(bench):
    bench.show(*quiet(), waiting_tokens=3500)
    await bench.tick(5)
    assert bench.groups("prefill") == 4


async def test_a_group_is_emptied_by_all_schedulers_and_then_taken(bench):
    bench.show(*quiet())
    await bench.tick(14)
    assert await bench.held() == {("prefill-1-0", 7)}
    drained = [instance("prefill", 0), instance("prefill", 1, "draining"), *quiet(0, 2)]
    bench.schedulers[0].show(*drained)  # the other one did not hear of it
    await bench.tick(10)
    assert bench.groups("prefill") == 2
    bench.show(*[replace(one, running=1) if one.instance == "prefill-1-0" else one for one in drained])
    await bench.tick(10)
    assert bench.groups("prefill") == 2  # it has work
    bench.show(*drained)
    await bench.tick(5)
    assert bench.groups("prefill") == 1
    assert bench.groups("decode") == 2


async def test_a_silent_scheduler_or_old_reports_take_nothing_away(bench):
    bench.show(*quiet())
    bench.schedulers[1].silent = True
    await bench.tick(20)
    bench.schedulers[1].silent = False
    bench.show(*quiet(report_age_ms=11_000))
    await bench.tick(20)
    bench.show(*quiet(report_age_ms=-1))
    await bench.tick(20)
    assert await bench.held() == set()
    assert bench.groups("prefill") == 2


async def test_without_any_scheduler_nothing_is_decided(bench):
    for one in bench.schedulers:
        one.silent = True
    await bench.tick(3)
    assert bench.failures("DEPENDENCY_UNAVAILABLE") == 3
    assert bench.controller.state.pools == {}


async def test_errors_of_the_server_are_tried_again(bench):
    bench.show(*(instance("prefill", i, queued_tokens=3500) for i in range(2)), *quiet(0, 2))
    await bench.tick(4)
    bench.kubernetes.fail(503, 1, "poddisruptionbudgets")
    await bench.tick()  # cannot look
    bench.kubernetes.fail(500, 1, "/scale")
    await bench.tick()  # cannot act, and so nothing was changed: no cooldown
    assert bench.groups("prefill") == 2
    assert bench.failures("DEPENDENCY_UNAVAILABLE") == 2
    await bench.tick()
    assert bench.groups("prefill") == 4


async def test_a_conflict_is_planned_anew_on_what_is_there(bench):
    bench.show(*(instance("prefill", i, queued_tokens=3500) for i in range(2)), *quiet(0, 2))
    await bench.tick(4)
    edits = []

    def edit(path):
        if path.endswith("tandem-prefill/scale") and not edits:
            edits.append(path)
            bench.kubernetes.edit(LWS, "tandem-prefill", lambda one: one["spec"].update(replicas=3))

    bench.kubernetes.before_write = edit
    await bench.tick()
    assert bench.groups("prefill") == 3
    assert bench.failures("OBJECT_CHANGED") == 1
    await until(lambda: bench.around.picture.pools()["prefill"].replicas == 3)
    await bench.tick()
    assert bench.groups("prefill") == 4


async def test_budgets_are_read(bench):
    bench.kubernetes.put("poddisruptionbudgets", disruption_budget("prefill", minAvailable=2))
    bench.show(*quiet())
    await bench.tick(20)
    assert await bench.held() == set()


async def test_another_leader_means_hands_off(bench):
    bench.show(*(instance("prefill", i, queued_tokens=3500) for i in range(2)), *quiet(0, 2))
    await bench.tick(4)

    def taken(one):
        one["spec"].update(holderIdentity="another", renewTime="later")

    bench.kubernetes.edit("leases", "tandem-autoscaler", taken)
    await bench.tick(2)
    assert bench.groups("prefill") == 2
    assert bench.controller.state.pools == {}  # what it had seen is too old to judge by when it leads again
    await bench.tick(4)  # the other one's lease lapses
    assert bench.groups("prefill") == 2
    await bench.tick(5)
    assert bench.groups("prefill") == 4
