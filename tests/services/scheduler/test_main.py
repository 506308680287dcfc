"""The replica's own process over real Redis and NATS, with fake workers that hold real leases."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import aiohttp
import pytest
import yaml

from common.bus.connection import connect_bus
from common.bus.load_reporter import LoadReporter
from common.bus.messages import DrainNotice
from common.bus.subjects import Subjects
from common.clock import MonotonicClock
from common.config.load import load_cluster
from common.engine.events import EngineLoad
from common.errors import Cancelled, ConfigError, DependencyUnavailable
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import ChatMessage, GenerateRequest
from common.rpc.server import Probe
from common.state.connect import connect_redis
from common.state.index_writer import IndexWriter
from common.state.keys import Keys
from common.state.worker_leases import WorkerLeases, WorkerRecord
from services.launcher.ports import free_ports
from services.scheduler.links import open_links
from tests.fakes.cluster import tokens_of, until
from tests.fakes.tokenizer import CONFIG, tokenizer_document
from tests.fakes.workers import BLOCK_TOKENS, FakeDecode, FakePrefill
from tests.services.scheduler.requests import ask, right

ROOT = Path(__file__).resolve().parents[3]
LEASE_S = 60.0


@pytest.fixture
def config(tmp_path, valkey_url, nats_url, cluster):
    """A cluster's file, and its ports."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 1000, "eos_token_id": 1, "model_type": "deepseek_v3"}))
    document = tokenizer_document()
    (model / "tokenizer.json").write_text(json.dumps(document))
    (model / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    ports = {name: free_ports(1) for name in ("port", "http_port", "metrics_port")}
    fields = {
        "cluster": cluster,
        "model": {"path": str(model), "name": "tiny"},
        "block_tokens": BLOCK_TOKENS,
        "draft_tokens": 0,
        "scheduler": {**ports, "drain_timeout_s": 10.0},
        "redis": {"url": valkey_url, "start_timeout_s": 1.0},
        "nats": {"url": nats_url, "start_timeout_s": 1.0},
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(fields))
    return file, fields


async def start(file):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.scheduler.main", "--config", str(file),
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def workers(config):
    """One of each role, leased; gives (prefill, decode, leases, redis, keys)."""
    _, fields = config
    redis = await connect_redis(fields["redis"]["url"], 5.0, 5.0)
    keys = Keys(fields["cluster"])
    leases = WorkerLeases(redis, keys)
    prefills = {"p0": FakePrefill("p0")}
    decode = FakeDecode("d0", prefills)
    for worker in (prefills["p0"], decode):
        await worker.start()
        record = WorkerRecord(worker.instance, worker.role, worker.group, worker.address, worker.incarnation)
        await leases.put(record, LEASE_S)
    yield prefills["p0"], decode, redis, keys
    for worker in (prefills["p0"], decode):
        await worker.kill()
    await redis.aclose()


@asynccontextmanager
async def running(config):
    """The process, ready, and its client."""
    file, fields = config
    process = await start(file)
    async with InferenceClient(f"127.0.0.1:{fields['scheduler']['port']}") as client:
        await ready(client)
        yield process, client
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 20)


async def ready(client, *, serving=True):
    async with asyncio.timeout(30.0):
        while True:
            try:
                if await client.serving(Probe.READINESS, 1.0) is serving:
                    return
            except DependencyUnavailable:
                pass
            await asyncio.sleep(0.05)


async def test_from_ready_to_an_orderly_end(config):
    _, fields = config
    async with workers(config) as (prefill, decode, redis, keys), running(config) as (process, client):
        assert tokens_of([d async for d in client.generate(ask())]) == right(20)
        chat = GenerateRequest(chat=(ChatMessage("user", "hello"),))
        assert await anext(client.generate(chat))

        # The real index: what an instance writes there is found, and predicted for the next request.
        writer = IndexWriter(redis, keys, "p0", prefill.incarnation)
        await writer.repair(list(prefill.cache))
        deltas = [d async for d in client.generate(ask(request_id="cached"))]
        assert deltas[-1].usage.cached_tokens == 48
        explanation = await client.explain("cached")
        assert explanation.predicted_cached_blocks == explanation.actual_cached_blocks == 3

        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{fields['scheduler']['http_port']}/v1/models"
            async with session.get(url) as response:
                assert (await response.json())["data"][0]["id"] == "tiny"
            url = f"http://127.0.0.1:{fields['scheduler']['metrics_port']}/metrics"
            async with session.get(url) as response:
                text = await response.text()
            assert 'tandem_finished_choices_total{finish_reason="length",model="tiny"}' in text
            assert 'tandem_bus_messages_total{model="tiny",outcome="received"}' in text
            assert 'tandem_bus_disconnects_total{model="tiny"} 0.0' in text

        bus = await connect_bus(fields["nats"]["url"], "test", 2.0, 5.0)
        subjects = Subjects(fields["cluster"])
        reporter = LoadReporter(bus, subjects, "d0", decode.incarnation)
        await reporter.report(asdict(EngineLoad(7, 1, 2, 30, 55, 100, 0.25)))
        await heard(client, lambda d0: (d0.queued_tokens, d0.running, d0.free_blocks, d0.step_ms) == (7, 2, 55, 250.0))

        decode.step_s = 0.05
        last = asyncio.create_task(_all(client, ask()))
        await until(lambda: bool(decode.works))
        await bus.publish(subjects.drain("d0"), DrainNotice("d0", decode.incarnation))
        await heard(client, lambda d0: d0.state == "draining")
        await bus.close()
        process.send_signal(signal.SIGTERM)
        await ready(client, serving=False)
        assert tokens_of(await last) == right(20)  # a drain lets it end
        _, said = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0, said.decode()


async def _all(client, request):
    return [delta async for delta in client.generate(request)]


async def test_a_killed_replica_fails_its_streams_and_workers_drop_its_work(config):
    async with workers(config) as (prefill, decode, _, _), running(config) as (process, client):
        decode.step_s = 0.05
        last = asyncio.create_task(_all(client, ask(max_tokens=1000)))
        await until(lambda: bool(decode.works))
        process.kill()
        with pytest.raises((DependencyUnavailable, Cancelled)):
            await asyncio.wait_for(last, 2)
        await until(lambda: not decode.works and not prefill.leases, 5)


async def test_an_unreadable_lease_is_counted_and_said_once(config):
    _, fields = config
    async with workers(config) as (_, _, redis, keys):
        await redis.sadd(keys.workers, "x-0")
        await redis.set(keys.worker_prefix + "x-0", "{}")
        async with running(config) as (process, _):
            url = f"http://127.0.0.1:{fields['scheduler']['metrics_port']}/metrics"
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                while await _metric(session, url, "tandem_unreadable_leases_total") < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            _, said = await asyncio.wait_for(process.communicate(), 20)
        assert said.decode().count("worker record unreadable") == 1
        await redis.delete(keys.worker_prefix + "x-0")


async def _metric(session, url, name):
    async with session.get(url) as response:
        (line,) = [line for line in (await response.text()).splitlines() if line.startswith(name + "{")]
    return float(line.rpartition(" ")[2])


async def said_at_the_end(file):
    process = await start(file)
    _, said = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, said.decode()


async def test_what_cannot_work_ends_with_a_reason(config):
    file, fields = config
    file.write_text(
        yaml.safe_dump(fields | {"redis": {"url": f"redis://127.0.0.1:{free_ports(1)}", "start_timeout_s": 0.5}})
    )
    code, said = await said_at_the_end(file)
    assert code == 2
    assert "no Redis at redis://127.0.0.1" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("absent", ["redis", "nats"])
async def test_a_replica_that_waits_ends_at_once_when_asked(config, absent):
    file, fields = config
    address = f"{absent}://127.0.0.1:{free_ports(1)}"
    file.write_text(yaml.safe_dump(fields | {absent: {"url": address, "start_timeout_s": 60.0}}))
    process = await start(file)
    while b"waiting for" not in (line := await asyncio.wait_for(process.stderr.readline(), 30)):
        assert line, "the replica ended instead of waiting"
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.wait_for(process.communicate(), 5)
    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert f"asked to end while waiting for {absent.upper() if absent == 'nats' else 'Redis'} at {address}" in line


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"])
async def test_a_malformed_model_file_is_one_line(config, file):
    (Path(config[1]["model"]["path"]) / file).write_text("{]")
    code, said = await said_at_the_end(config[0])
    assert code == 2
    (line,) = said.splitlines()
    assert f"model/{file}: not JSON" in line


async def test_embedded_servers_are_the_launchers(config):
    file, fields = config
    file.write_text(yaml.safe_dump(fields | {"nats": {"url": "embedded"}}))
    with pytest.raises(ConfigError, match=r"nats\.url = embedded"):
        async with open_links(load_cluster(file), "s", MonotonicClock(), asyncio.Event()):
            pass


async def heard(client, condition):
    async with asyncio.timeout(5):
        while True:
            infos = {info.instance: info for info in (await client.cluster()).instances}
            if condition(infos["d0"]):
                return
            await asyncio.sleep(0.02)
