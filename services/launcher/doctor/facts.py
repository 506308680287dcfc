"""What is known of a node, the model, Redis, NATS and running instances: gathering fills it, checks read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from common.config.cluster import ClusterConfig
from common.request import Compatibility

DoctorRole = Literal["prefill", "decode", "scheduler"]
UNLIMITED = -1
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in an error of Redis or NATS


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    product: str
    total_bytes: int
    free_bytes: int
    capability: float
    driver: int  # major version
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Hca:
    name: str
    active: bool  # some port is
    link_layer: str = "InfiniBand"  # or Ethernet
    gids: tuple[int, ...] = (0,)  # indices of its first port that hold an address


@dataclass(frozen=True, slots=True)
class Cache:
    path: str
    writable: bool
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Loopback:
    """One read with NIXL on this node, its bytes compared."""

    device: str  # cpu, cuda:0
    length_bytes: int
    error: str = ""  # empty: every byte arrived


@dataclass(frozen=True, slots=True)
class Node:
    """
    Attributes:
        memlock_bytes, nofile: soft limits; UNLIMITED.
        memory_bytes: what the pod may take.
        peer_memory: the kernel lets NICs reach GPU memory, through nvidia_peermem or dmabuf.
        rdma_device: /dev/infiniband is there; gpu_copy_device: /dev/gdrdrv is.
    """

    memlock_bytes: int
    may_lock_memory: bool
    nofile: int
    shm_bytes: int
    memory_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    hcas: tuple[Hca, ...] = ()
    interfaces: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    rdma_device: bool = False
    peer_memory: bool = False
    gpu_copy_device: bool = False
    caches: tuple[Cache, ...] = ()
    transfer_library: bool = True
    loopbacks: tuple[Loopback, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """
    Attributes:
        faults: what is missing, cut short or not readable.
        fingerprint: empty when the weights were not looked at.
    """

    config: Mapping[str, Any]
    faults: tuple[str, ...] = ()
    has_tokenizer: bool = True
    weight_bytes: int = 0
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Redis:
    """`error` is empty when it answered; `refused` says that it wanted other credentials."""

    error: str = ""
    refused: bool = False
    version: str = ""
    eviction: str = "noeviction"
    memory_limit_bytes: int = 0
    is_replica: bool = False
    is_cluster: bool = False
    writes_log: bool = False  # appendonly
    clock_skew_s: float = 0.0  # ours minus its


@dataclass(frozen=True, slots=True)
class Nats:
    error: str = ""
    refused: bool = False
    version: str = ""
    max_payload_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Peer:
    """A running instance; `compatibility` is None when it did not answer."""

    instance: str
    role: str
    compatibility: Compatibility | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was gathered for one role; what a role does not need is None."""

    config: ClusterConfig
    role: DoctorRole
    node: Node
    model: ModelFiles
    redis: Redis | None = None
    nats: Nats | None = None
    peers: tuple[Peer, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return self.config.model.device == "cuda" and self.role != "scheduler"

    @property
    def wants_rdma(self) -> bool:
        """The chart says so, or a group spans nodes."""
        if not self.on_gpu:
            return False
        spans = (self.config.prefill if self.role == "prefill" else self.config.decode).parallel.pods_per_group > 1
        return spans or self.node.rdma_device or any(self.node.environment.get(name) for name in RDMA_NAMES)


IN_A_POD = "KUBERNETES_SERVICE_HOST"
RDMA_NAMES = ("TANDEM_RDMA", "NCCL_IB_HCA", "NVSHMEM_HCA_LIST", "UCX_NET_DEVICES")
