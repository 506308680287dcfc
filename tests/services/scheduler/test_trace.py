"""A client's trace goes through the scheduler to every worker that computes for it, and into the explanation."""

import pytest
from multidict import CIMultiDict

from common.errors import WorkerLost
from common.rpc.clients import InferenceClient
from common.telemetry.trace import Trace, continued, tracing
from tests.fakes.cluster import FakeCluster, tokens_of
from tests.services.scheduler.requests import ask, right
from tests.services.scheduler.test_http_edge import CHAT, edge


def trace_ids(cluster: FakeCluster, state: str = "") -> list[str]:
    """Of all calls that brought work to a worker; each carried the state."""
    workers = (*cluster.prefills.values(), *cluster.decodes.values())
    traces = [trace for worker in workers for trace in worker.traces]
    assert all(trace is not None and trace.state == state for trace in traces)
    return [trace.trace_id for trace in traces]


async def test_the_clients_trace_reaches_every_attempt():
    async with FakeCluster(decodes=2) as cluster:
        for decode in cluster.decodes.values():
            decode.faults = {5: WorkerLost("gone")}
        trace = continued(Trace("1" * 32, "2" * 16, 1, "vendor=x"))
        with tracing(trace):
            deltas = await cluster.ask(ask(request_id="r", n=2))
        assert tokens_of(deltas) == right(20)
        ids = trace_ids(cluster, "vendor=x")
        assert len(ids) > 4  # two choices, and their resumes
        assert set(ids) == {trace.trace_id}
        assert (await cluster.client.explain("r")).trace_id == trace.trace_id


async def test_a_request_without_a_trace_gets_its_own():
    async with FakeCluster() as cluster:
        for name in ("a", "b"):
            await cluster.ask(ask(request_id=name))
        explained = [(await cluster.client.explain(name)).trace_id for name in ("a", "b")]
        assert sorted(trace_ids(cluster)) == sorted(explained * 2)
        assert explained[0] != explained[1]


@pytest.mark.parametrize("named", [True, False])
async def test_over_http(named):
    trace = continued(None)
    async with edge() as (cluster, session):
        parent = dict(trace.headers())["traceparent"] if named else "junk"
        states = [("tracestate", "a=1, b=2"), ("tracestate", "c=3")]
        headers = CIMultiDict([("X-Request-Id", "r"), ("traceparent", parent), *states])
        async with session.post("/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert response.status == 200
        async with InferenceClient(cluster.address) as client:
            explained = (await client.explain("r")).trace_id
        assert (explained == trace.trace_id) is named
        assert set(trace_ids(cluster, "a=1,b=2,c=3" if named else "")) == {explained}


async def test_the_schedulers_lines_carry_it(json_logs):
    async with FakeCluster() as cluster:
        with tracing(trace := continued(None)):
            await cluster.ask(ask(request_id="r"))
    (ended,) = [line for line in json_logs() if line["event"] == "request ended"]
    assert (ended["trace_id"], ended["request"], ended["outcome"]) == (trace.trace_id, "r", "length")
