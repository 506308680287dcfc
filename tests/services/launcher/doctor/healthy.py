"""Nodes, dependencies and peers as they should be, for every shape that the chart's presets have."""

from dataclasses import replace

from common.config.load import parse_cluster
from common.kv.hashing import HASH_CONTRACT
from common.request import Compatibility
from services.launcher.doctor.facts import (
    UNLIMITED,
    Cache,
    Facts,
    Gpu,
    Hca,
    Loopback,
    ModelFiles,
    Nats,
    Node,
    Peer,
    Redis,
)

GIB = 1 << 30
V3 = {
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8"},
}
COMPATIBILITY = Compatibility("print", HASH_CONTRACT, "bfloat16", 64, 62, 576, 1)
H200 = Gpu(0, "NVIDIA H200", 140 * GIB, 139 * GIB, 9.0, 580)
H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79 * GIB, 78 * GIB, 9.0, 580)
GB200 = Gpu(0, "NVIDIA GB200", 184 * GIB, 183 * GIB, 10.0, 580)

# name: GPU, GPUs of a node, (prefill ep, tp, blocks), (decode ep, tp, blocks)
PRESETS = {
    "h200-single-node": (H200, 8, (8, 4, 4096), (8, 1, 6144)),
    "h100-ep16": (H100, 8, (16, 4, 2560), (16, 1, 3072)),
    "h100-ep32": (H100, 8, (16, 4, 2560), (32, 1, 6144)),
    "h100-ep64": (H100, 8, (16, 4, 2560), (64, 1, 8192)),
    "h100-ep128": (H100, 8, (16, 4, 2560), (128, 1, 9216)),
    "gb200-nvl72": (GB200, 4, (8, 4, 12288), (64, 1, 24576)),
}


def healthy(name="h200-single-node", role="decode"):
    gpu, per_node, prefill, decode = PRESETS[name]

    def pool(ep, tp, blocks):
        parallel = {"ep": ep, "tp": tp, "instances_per_pod": per_node // tp}
        return {"parallel": parallel, "blocks": blocks, "worker": {"host": "10.0.0.7"}}

    config = parse_cluster(
        {
            "model": {"path": "/models/v3", "name": "v3", "dtype": "bfloat16", "device": "cuda"},
            "context_tokens": 32768,
            "prefill": pool(*prefill),
            "decode": pool(*decode),
            "redis": {"url": "redis://redis:6379/0"},
            "nats": {"url": "nats://nats:4222"},
        },
        "test",
    )
    node = Node(
        memlock_bytes=UNLIMITED,
        may_lock_memory=True,
        nofile=1 << 20,
        shm_bytes=64 * GIB,
        memory_bytes=2048 * GIB,
        environment={
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "NCCL_IB_HCA": "mlx5_0,mlx5_1",
            "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
            "NVSHMEM_HCA_LIST": "mlx5_0,mlx5_1",
            "NCCL_SOCKET_IFNAME": "eth",
        },
        gpus=tuple(replace(gpu, index=i) for i in range(per_node)),
        hcas=tuple(Hca(f"mlx5_{i}", active=True) for i in range(8)),
        interfaces=frozenset({"lo", "eth0"}),
        addresses=frozenset({"127.0.0.1", "10.0.0.7"}),
        rdma_device=True,
        peer_memory=True,
        gpu_copy_device=True,
        caches=(Cache("/cache/triton", writable=True, free_bytes=50 * GIB),),
        loopbacks=tuple(Loopback(f"cuda:{i}", 8 << 20) for i in range(per_node)),
    )
    peers = (Peer("prefill-0-0", "prefill", COMPATIBILITY), Peer("decode-0-0", "decode", COMPATIBILITY))
    model = ModelFiles(V3, fingerprint="print", weight_bytes=700 * GIB)
    if role == "scheduler":
        node = replace(
            node, gpus=(), hcas=(), rdma_device=False, memlock_bytes=65536, may_lock_memory=False, loopbacks=()
        )
        model = replace(model, fingerprint="", weight_bytes=0)
    return Facts(config, role, node, model, Redis(version="7.2.4"), Nats(version="2.12.1"), peers)
