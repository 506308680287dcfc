"""Misconfigurations, each alone in an otherwise healthy place, are refused by name; healthy places are left alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ConfigError
from services.launcher.doctor.config_fault import config_faults
from services.launcher.doctor.diagnose import diagnose
from services.launcher.doctor.facts import Cache, Hca, Loopback, Peer
from services.launcher.doctor.finding import Severity
from services.launcher.doctor.memory_need import memory_need
from services.launcher.doctor.names import field_of, setting_of
from tests.services.launcher.doctor.healthy import COMPATIBILITY, GIB, H100, PRESETS, healthy


def node(**changes):
    return lambda facts: replace(facts, node=replace(facts.node, **changes))


def environment(**variables):
    return lambda facts: replace(facts, node=replace(facts.node, environment={**facts.node.environment, **variables}))


def gpus(**changes):
    """All GPUs changed."""
    return lambda facts: node(gpus=tuple(replace(gpu, **changes) for gpu in facts.node.gpus))(facts)


def one_gpu(**changes):
    return lambda facts: node(gpus=(*facts.node.gpus[:-1], replace(facts.node.gpus[-1], **changes)))(facts)


def redis(**changes):
    return lambda facts: replace(facts, redis=replace(facts.redis, **changes))


def nats(**changes):
    return lambda facts: replace(facts, nats=replace(facts.nats, **changes))


def model(**changes):
    return lambda facts: replace(facts, model=replace(facts.model, **changes))


def peer(**changes):
    """The prefill that runs differs."""
    other = Peer("prefill-0-0", "prefill", replace(COMPATIBILITY, **changes))
    return lambda facts: replace(facts, peers=(other, *facts.peers[1:]))


def config(**changes):
    return lambda facts: replace(facts, config=facts.config.model_copy(update=changes))


def decode_pool(field, **changes):
    def change(facts):
        decode = facts.config.decode
        part = getattr(decode, field).model_copy(update=changes)
        return config(decode=decode.model_copy(update={field: part}))(facts)

    return change


def section(name, **changes):
    return lambda facts: config(**{name: getattr(facts.config, name).model_copy(update=changes)})(facts)


def in_fp32(facts):
    """With blocks for which there is room, and nobody running."""
    decode = facts.config.decode.model_copy(update={"blocks": 1024})
    changed = config(model=facts.config.model.model_copy(update={"dtype": "float32"}), decode=decode)(facts)
    return replace(changed, peers=())


HCAS = tuple(Hca(f"mlx5_{i}", active=True) for i in range(2))
ROCE = tuple(replace(hca, link_layer="Ethernet", gids=(0, 1, 3)) for hca in HCAS)

SEEDED = [
    ("memlock", "securityProfile", node(memlock_bytes=65536, may_lock_memory=False)),
    ("shm", "decode.shm", node(shm_bytes=64 << 20)),
    ("nofile", "node: LimitNOFILE of the runtime", node(nofile=1024)),
    ("jit-cache", "jitCache.kind", node(caches=(Cache("/cache/triton", writable=False, free_bytes=GIB),))),
    ("gpu-count", "decode.gpusPerNode", lambda facts: node(gpus=facts.node.gpus[:4])(facts)),
    ("gpu-product", "decode.gpu.products", gpus(product="NVIDIA A100-SXM4-80GB", capability=8.0)),
    ("gpu-mixed", "decode.gpu.products", one_gpu(product="NVIDIA H20")),
    ("gpu-driver", "node: NVIDIA driver", gpus(driver=550)),
    ("gpu-mig", "decode.gpu.resource", one_gpu(mig=True)),
    ("gpu-memory", "decode.ep", gpus(total_bytes=H100.total_bytes, free_bytes=H100.free_bytes)),
    ("gpu-memory", "decode.settings.blocks", gpus(total_bytes=110 * GIB, free_bytes=110 * GIB)),
    ("gpu-taken", "decode.nodeSelector", one_gpu(free_bytes=100 * GIB)),
    ("rdma-device", "rdma.resources", node(rdma_device=False, hcas=())),
    ("rdma-device", "rdma.resources", node(hcas=())),
    (
        "peer-memory",
        "node: modprobe nvidia_peermem, or the open kernel module",
        node(peer_memory=False),
    ),
    ("hca-unknown", "rdma.hcas", environment(NCCL_IB_HCA="mlx5_0,mlx5_9")),
    ("hca-unknown", "rdma.hcas", environment(UCX_NET_DEVICES="mlx5_8:1")),
    ("hca-inactive", "rdma.hcas", node(hcas=(HCAS[0], replace(HCAS[1], active=False)))),
    (
        "hca-mixed",
        "rdma.hcas",
        lambda facts: node(
            environment={"TANDEM_RDMA": "required"}, hcas=(HCAS[0], replace(HCAS[1], link_layer="Ethernet"))
        )(facts),
    ),
    ("gid-index", "rdma.gidIndex", lambda facts: environment(NCCL_IB_GID_INDEX="5")(node(hcas=ROCE)(facts))),
    ("gid-index", "rdma.gidIndex", environment(UCX_IB_GID_INDEX="auto")),
    ("interface", "rdma.interface", environment(NCCL_SOCKET_IFNAME="bond0")),
    ("ucx-tls", "rdma.env", environment(UCX_TLS="tcp,cuda_copy")),
    ("nccl-ib", "rdma.env", environment(NCCL_IB_DISABLE="1")),
    ("nvshmem-transport", "rdma.env", environment(NVSHMEM_REMOTE_TRANSPORT="none")),
    ("transfer-bytes", "rdma.hcas", node(loopbacks=(Loopback("cuda:0", 8 << 20, "77 of 8388608 bytes differ"),))),
    ("nixl", "images.gpu.tag", node(transfer_library=False)),
    ("worker-address", "decode.worker", decode_pool("worker", host="0.0.0.0")),
    ("worker-address", "decode.worker", decode_pool("worker", host="10.9.9.9")),
    ("model-files", "model.download.enabled", model(faults=("model-00007.safetensors: shard is missing",))),
    ("model-format", "model.store.directory", lambda facts: model(
        config={**facts.model.config, "quantization_config": {"quant_method": "awq"}})(facts)),
    ("latent-dtype", "layout.dtype", in_fp32),
    ("redis-untrusted", "tls.caSecret", redis(error="rediss://redis:6379: CERTIFICATE_VERIFY_FAILED")),
    ("nats-untrusted", "tls.caSecret", nats(error="tls://nats:4222: CERTIFICATE_VERIFY_FAILED")),
    ("redis-unreachable", "redis.external.urlSecret", redis(error="redis://redis:6379: timed out")),
    ("redis-credentials", "redis.external.urlSecret", redis(error="NOAUTH", refused=True)),
    ("redis-version", "redis.external.urlSecret", redis(version="5.0.14")),
    ("redis-eviction", "redis.external.urlSecret", redis(eviction="volatile-lru", memory_limit_bytes=GIB)),
    ("redis-replica", "redis.external.urlSecret", redis(is_replica=True)),
    ("redis-cluster", "redis.external.urlSecret", redis(is_cluster=True)),
    ("redis-embedded", "redis.mode", section("redis", url="embedded")),
    ("clock-skew", "node: chrony or another NTP client", redis(clock_skew_s=-45.0)),
    ("nats-unreachable", "nats.external.urlSecret", nats(error="nats://nats:4222: refused")),
    ("nats-credentials", "nats.external.urlSecret", nats(error="Authorization Violation", refused=True)),
    ("nats-version", "nats.external.urlSecret", nats(version="2.1.9")),
    ("nats-payload", "nats.external.urlSecret", nats(max_payload_bytes=1024)),
    ("pair-block-tokens", "layout.blockTokens", peer(block_tokens=128)),
    ("pair-kv-dtype", "layout.dtype", peer(kv_dtype="float32")),
    ("pair-draft-tokens", "layout.draftTokens", peer(draft_tokens=0)),
    ("pair-model-fingerprint", "model.store.directory", peer(model_fingerprint="another revision")),
    ("pair-hash-contract", "images.gpu.tag", peer(hash_contract="blake2b128-i32le-v0")),
    ("pair-latent-layers", "model.store.directory", peer(latent_layers=61)),
    ("pair-latent-width", "model.store.directory", peer(latent_width=512)),
]  # fmt: skip


def errors(facts):
    return [(one.id, one.setting) for one in diagnose(facts) if one.severity is Severity.ERROR]


@pytest.mark.parametrize(("id_", "setting", "change"), SEEDED, ids=[f"{i}-{one[0]}" for i, one in enumerate(SEEDED)])
def test_a_misconfiguration_is_refused_by_name(id_, setting, change):
    found = errors(change(healthy()))
    assert set(found) == {(id_, setting)}, found


def test_thirty_and_more_are_seeded():
    assert len(SEEDED) >= 30
    assert len({one[0] for one in SEEDED}) >= 30


@pytest.mark.parametrize("role", ["prefill", "decode", "scheduler"])
@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_raises_an_alarm_on_a_healthy_node(name, role):
    assert diagnose(healthy(name, role)) == []


def test_cards_of_80_gb_do_not_hold_ep_8():
    facts = gpus(total_bytes=H100.total_bytes, free_bytes=H100.free_bytes)(healthy())
    (finding,) = diagnose(facts)
    assert "77.4 GiB experts" in finding.limit  # 619.4 over 8


def test_memory_is_that_of_the_published_model():
    """Routed experts of 59 layers in FP8, and what every rank holds; latent of 62 layers of 576 in bfloat16."""
    facts = healthy()
    need = memory_need(facts.config, "decode", facts.model.config)
    assert need.experts == 59 * 256 * 3 * 7168 * 2048 // 8
    assert need.latent == 6144 * 64 * 62 * 576 * 2
    assert 14 * GIB < need.others < 20 * GIB
    with_tp = memory_need(facts.config, "prefill", facts.model.config)
    assert with_tp.others < need.others


@pytest.mark.parametrize(
    ("change", "id_"),
    [
        (node(gpu_copy_device=False), "gdrcopy"),
        (redis(writes_log=True), "redis-log"),
        (redis(clock_skew_s=3.0), "clock-skew"),
        (model(has_tokenizer=False), "tokenizer"),
        (node(caches=(Cache("/cache", writable=True, free_bytes=1 << 20),)), "jit-cache-room"),
        (lambda facts: replace(facts, peers=(Peer("prefill-0-0", "prefill", None, "no answer"),)), "peer-silent"),
        (node(rdma_device=False, hcas=(), environment={}), "rdma-off"),
    ],
)
def test_what_only_costs_time_is_a_warning(change, id_):
    (finding,) = diagnose(change(healthy()))
    assert (finding.id, finding.severity) == (id_, Severity.WARNING)


def test_a_refused_file_names_the_values():
    fault = ConfigError("f.yaml: prefill.parallel.ep = 7: must divide the model's 256 routed experts; model.path: gone")
    found = config_faults(fault, Path("f.yaml"))
    assert [(one.id, one.setting) for one in found] == [("config", "prefill.ep"), ("config", "model.store.directory")]
    assert found[0].limit == "must divide the model's 256 routed experts"
    assert setting_of("decode.blocks") == "decode.settings.blocks"
    assert found[0].change == "prefill.parallel.ep (chart: prefill.ep)"
    assert setting_of("block_tokens") == "layout.blockTokens"


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("layout.dtype", "model.dtype"),
        ("decode.settings.blocks", "decode.blocks"),
        ("decode.gpusPerNode", "decode.parallel.instances_per_pod"),
        ("prefill.ep", "prefill.parallel.ep"),
        ("decode.worker", "decode.worker.host"),
        ("prefill.worker.threads", "prefill.worker.threads"),
        ("model.download.enabled", "model.path"),
        ("redis.external.urlSecret", "redis.url"),
        ("nats.mode", "nats.url"),
        ("contextTokens", "context_tokens"),
        ("rdma.hcas", ""),
        ("decode.gpu.products", ""),
        ("node: NVIDIA driver", ""),
        ("--config", ""),
    ],
)
def test_what_to_change_is_named_as_the_file_names_it(setting, field):
    assert field_of(setting) == field
    if field and setting not in ("model.download.enabled", "nats.mode"):  # a second value that leads to the field
        assert setting_of(field) == setting
