"""Facts of the machine, from /proc, /sys and the process's own limits."""

import importlib.util
import os
import resource
import shutil
import tempfile
from pathlib import Path

import psutil

from services.launcher.doctor.facts import IN_A_POD, UNLIMITED, Cache, Node
from services.launcher.doctor.gather_gpus import gather_gpus
from services.launcher.doctor.gather_rdma import gather_hcas, peer_memory

_CAP_IPC_LOCK = 14
_CACHES = ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
_ENVIRONMENT = ("UCX_", "NCCL_", "NVSHMEM_", "GLOO_", "TANDEM_RDMA", IN_A_POD)
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def gather_node(*, with_gpus: bool) -> Node:
    """Everything but the transfer test."""
    gpus, gpu_error = gather_gpus() if with_gpus else ((), "")
    return Node(
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        may_lock_memory=_has_capability(_CAP_IPC_LOCK),
        nofile=_limit(resource.RLIMIT_NOFILE),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
        memory_bytes=_memory(),
        environment={name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)},
        gpus=gpus,
        gpu_error=gpu_error,
        hcas=gather_hcas(Path("/sys/class/infiniband")),
        interfaces=frozenset(psutil.net_if_addrs()),
        addresses=frozenset(one.address for found in psutil.net_if_addrs().values() for one in found),
        rdma_device=Path("/dev/infiniband").is_dir(),
        peer_memory=peer_memory(Path("/sys/module"), Path("/proc/driver/nvidia/version")),
        gpu_copy_device=Path("/dev/gdrdrv").exists(),
        caches=tuple(_cache(os.environ[name]) for name in _CACHES if os.environ.get(name)),
        transfer_library=importlib.util.find_spec("nixl_cu13") is not None,
    )


def _limit(number: int) -> int:
    soft, _ = resource.getrlimit(number)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _memory() -> int:
    """The least of the machine's and the cgroup's."""
    limits = [psutil.virtual_memory().total]
    for name in _CGROUP_LIMITS:
        file = Path(name)
        text = file.read_text(encoding="ascii").strip() if file.exists() else "max"
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def _cache(name: str) -> Cache:
    """Tried by writing a file, into the nearest directory that exists."""
    path = Path(name)
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        with tempfile.TemporaryFile(dir=path):
            writable = True
    except OSError:
        writable = False
    return Cache(name, writable, shutil.disk_usage(path).free)
