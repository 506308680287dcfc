"""Facts from real servers, real files and a real read."""

import asyncio
import json
import shutil
import time
from pathlib import Path

import pytest
import yaml
from redis.asyncio import Redis

from common.config.load import parse_cluster
from services.launcher.doctor.facts import Gpu, Hca
from services.launcher.doctor.gather_dependencies import (
    gather_dependencies,
    gather_nats,
    gather_redis,
)
from services.launcher.doctor.gather_gpus import parse_gpus
from services.launcher.doctor.gather_model import gather_model
from services.launcher.doctor.gather_node import gather_node
from services.launcher.doctor.gather_rdma import gather_hcas, peer_memory
from services.launcher.doctor.loopback import gather_loopback
from services.launcher.doctor.run import run_doctor

MODEL = Path(__file__).resolve().parents[4] / "models" / "tandem-bard"


def cluster_of(redis="embedded", nats="embedded", path="x"):
    document = {"model": {"path": path, "name": "m"}, "redis": {"url": redis}, "nats": {"url": nats}}
    return parse_cluster(document, "test")


async def test_redis_says_what_it_is(own_valkey):
    server = own_valkey("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
    facts, records = await gather_redis(cluster_of(redis=server.url))
    assert (facts.error, facts.eviction, facts.memory_limit_bytes) == ("", "allkeys-lru", 64 << 20)
    assert facts.writes_log
    assert not facts.is_replica
    assert abs(facts.clock_skew_s) < 0.5
    assert records == []
    server.stop()
    gone, _ = await gather_redis(cluster_of(redis=server.url))
    assert gone.error.startswith(f"redis://127.0.0.1:{server.port}")
    assert not gone.refused


async def test_redis_that_wants_a_password(own_valkey):
    server = own_valkey()
    async with Redis.from_url(server.url) as client:
        await client.config_set("requirepass", "secret")
    bare, _ = await gather_redis(cluster_of(redis=server.url))
    wrong, _ = await gather_redis(cluster_of(redis=server.url.replace("//", "//:other@")))
    right, _ = await gather_redis(cluster_of(redis=server.url.replace("//", "//:secret@")))
    assert (bare.refused, wrong.refused, right.error) == (True, True, "")
    assert "other" not in wrong.error.split(": ")[0]


async def test_nats_says_what_it_is(own_nats):
    server = own_nats("--user", "u", "--pass", "p")
    right = await gather_nats(cluster_of(nats=server.url.replace("//", "//u:p@")))
    assert (right.error, right.max_payload_bytes) == ("", 1 << 20)
    assert right.version.startswith("2.")
    wrong = await gather_nats(cluster_of(nats=server.url.replace("//", "//u:x@")))
    assert wrong.refused
    server.stop()
    gone = await gather_nats(cluster_of(nats=server.url))
    assert gone.error
    assert not gone.refused


async def test_servers_that_come_up_late_are_waited_for_only_when_asked(own_valkey, own_nats, tmp_path):
    first_redis, first_nats = own_valkey(), own_nats()
    config = cluster_of(redis=first_redis.url, nats=first_nats.url)
    for server in (first_redis, first_nats):
        server.stop()
    redis, records, nats = await gather_dependencies(config, patient=False)
    assert (bool(redis.error), records, bool(nats.error)) == (True, [], True)
    waiting = asyncio.create_task(gather_dependencies(config, patient=True))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    first_redis.start(first_redis.port, tmp_path)
    first_nats.start(first_nats.port, tmp_path)
    redis, records, nats = await waiting
    assert (redis.error, records, nats.error) == ("", [], "")


async def test_a_refusal_is_not_waited_out(own_valkey):
    server = own_valkey()
    async with Redis.from_url(server.url) as client:
        await client.config_set("requirepass", "secret")
    begun_s = time.monotonic()
    redis, _, _ = await gather_dependencies(cluster_of(redis=server.url), patient=True)
    assert redis.refused
    assert time.monotonic() - begun_s < 30.0


async def test_one_nats_of_several_is_enough(own_nats):
    gone, there = own_nats("--user", "u", "--pass", "p"), own_nats("--user", "u", "--pass", "p")
    gone.stop()
    urls = [server.url.replace("//", "//u:p@") for server in (gone, there)]
    assert (await gather_nats(cluster_of(nats=",".join(urls)))).error == ""
    there.stop()
    away = await gather_nats(cluster_of(nats=",".join(urls)))
    assert "u:p" not in away.error


def test_gpus_as_nvidia_smi_tells_them():
    rows = (
        "0, NVIDIA H200, 143771, 143000, 580.65.06, 9.0, Disabled",
        "1, NVIDIA H200, 143771, 9, 580.65.06, 9.0, Enabled",
    )
    first, second = parse_gpus("\n".join(rows))
    assert first == Gpu(0, "NVIDIA H200", 143771 << 20, 143000 << 20, 9.0, 580, mig=False)
    assert (second.index, second.mig) == (1, True)


def test_hcas_as_sysfs_tells_them(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("Ethernet\n")
    for index, gid in enumerate(
        ["fe80:0000:0000:0000:0000:0000:0000:0001", "0000:" * 7 + "0000", "0000:" * 7 + "ffff"]
    ):
        (port / "gids" / str(index)).write_text(gid + "\n")
    (tmp_path / "mlx5_1").mkdir()
    assert gather_hcas(tmp_path) == (Hca("mlx5_0", True, "Ethernet", (0, 2)), Hca("mlx5_1", False, "", ()))
    assert gather_hcas(tmp_path / "none") == ()


def test_ways_to_gpu_memory(tmp_path):
    driver = tmp_path / "version"
    assert not peer_memory(tmp_path, driver)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n")
    assert peer_memory(tmp_path, driver)
    driver.unlink()
    (tmp_path / "nvidia_peermem").mkdir()
    assert peer_memory(tmp_path, driver)


def test_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("UCX_TLS", "tcp")
    facts = gather_node(with_gpus=False)
    assert facts.memory_bytes > 1 << 28
    assert facts.shm_bytes > 0
    assert facts.environment["UCX_TLS"] == "tcp"
    assert "lo" in facts.interfaces
    assert facts.caches[0].writable


def test_a_model_directory(tmp_path):
    whole = gather_model(MODEL, with_weights=True)
    assert whole.faults == ()
    assert whole.has_tokenizer
    assert len(whole.fingerprint) == 32
    for file in MODEL.iterdir():
        shutil.copy(file, tmp_path / file.name)
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[0].unlink()
    with shards[1].open("r+b") as stream:
        stream.truncate(shards[1].stat().st_size - 1)
    (tmp_path / "tokenizer.json").unlink()
    broken = gather_model(tmp_path, with_weights=True)
    assert len(broken.faults) == 2
    assert "shard is missing" in broken.faults[0]
    assert "first lost" in broken.faults[1]
    assert (broken.fingerprint, broken.has_tokenizer) == ("", False)
    assert gather_model(tmp_path, with_weights=False).faults == ()
    assert "holds no config.json" in gather_model(tmp_path / "none", with_weights=True).faults[0]


def test_bytes_arrive_and_a_broken_way_is_told(monkeypatch):
    assert gather_loopback("cpu", through_nic=False, length_bytes=4 << 20).error == ""
    monkeypatch.setenv("UCX_TLS", "nothing_of_this_name")
    assert gather_loopback("cpu", through_nic=False, length_bytes=1 << 20).error != ""


def test_a_refused_file_ends_with_an_error(tmp_path, capsys):
    file = tmp_path / "tandem.yaml"
    file.write_text(yaml.safe_dump({"model": {"path": str(MODEL), "name": "m"}, "draft_tokens": 99}))
    assert run_doctor(file, "decode", [], as_json=True) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["id"], finding["severity"], finding["setting"]) == ("config", "error", "layout.draftTokens")


@pytest.mark.parametrize(
    ("text", "settings", "found", "change"),
    [
        (None, [], "nope.yaml: cannot be read: No such file or directory", "--config"),
        ("a: [", [], "nope.yaml: not YAML: while parsing", "--config"),
        ("a: 1\na: 2\n", [], "nope.yaml: the key a is given twice, on lines 1 and 2", "--config"),
        (
            "model: {path: gone, name: m}\n",
            [],
            "gone: holds no config.json",
            "model.path (chart: model.store.directory)",
        ),
        ("model: {path: gone, name: m}\n", ["model.name.x=1"], "setting 'model.name.x=1': name is a value", "--set"),
        ("model: {path: gone, name: m, dtype: x}\n", [], "model.dtype = 'x'", "model.dtype (chart: layout.dtype)"),
    ],
)
def test_a_file_that_is_refused_is_named_with_the_cause(tmp_path, capsys, monkeypatch, text, settings, found, change):
    monkeypatch.setenv("COLUMNS", "400")
    file = tmp_path / "nope.yaml"
    if text is not None:
        file.write_text(text)
    assert run_doctor(file, "decode", settings, as_json=False) == 1
    said = capsys.readouterr().out
    assert found in said
    assert f"│ {change} " in said


def test_an_error_stays_in_view_as_long_as_it_was_asked_to(tmp_path, capsys, monkeypatch):
    file, waited = tmp_path / "tandem.yaml", []
    file.write_text("model: {path: nowhere}\n")
    monkeypatch.setattr(
        "services.launcher.doctor.run.time.sleep", lambda s: waited.append((s, capsys.readouterr().out))
    )
    assert run_doctor(file, "decode", [], as_json=True, hold_s=60.0) == 1
    ((seconds, shown),) = waited
    assert seconds == 60.0
    assert '"error"' in shown
