"""Limits and storage of the node. Pure."""

from collections.abc import Iterator

from common.config.place import parallel_of
from services.launcher.doctor.facts import UNLIMITED, Facts
from services.launcher.doctor.finding import Finding, error, warning
from services.launcher.doctor.memory_need import memory_need

_MIB, _GIB = 1 << 20, 1 << 30
NOFILE = 8192  # connections of a worker to schedulers and peers, and the shards of a checkpoint
_SCHEDULER_NOFILE = 16384  # half of them are for HTTP connections
_CACHE_BYTES = 2 * _GIB
SHM_BYTES = {"cuda": 16 * _GIB, "cpu": 64 * _MIB}  # NCCL, NVSHMEM and UCX between the ranks of a node


def check_node(facts: Facts) -> Iterator[Finding]:
    node, role = facts.node, facts.role
    nofile = _SCHEDULER_NOFILE if role == "scheduler" else NOFILE
    if node.nofile != UNLIMITED and node.nofile < (nofile if facts.config.model.device == "cuda" else 1024):
        yield error("nofile", f"{node.nofile} open files", f"at least {nofile}", "node: LimitNOFILE of the runtime")
    if role == "scheduler":
        return
    needed_shm = SHM_BYTES[facts.config.model.device]
    if node.shm_bytes < needed_shm:
        yield error("shm", f"/dev/shm of {size(node.shm_bytes)}", f"at least {size(needed_shm)}", f"{role}.shm")
    if facts.wants_rdma and not node.may_lock_memory and node.memlock_bytes != UNLIMITED:
        yield error(
            "memlock",
            f"{size(node.memlock_bytes)} may be locked, and no IPC_LOCK",
            "no limit: RDMA pins the pool and the landing arena",
            "securityProfile",
        )
    yield from _memory(facts)
    yield from _caches(facts)


def _memory(facts: Facts) -> Iterator[Finding]:
    """On CPUs the pod's own memory holds weights and latent."""
    role = facts.role
    if role == "scheduler" or facts.config.model.device != "cpu":
        return
    need, parallel = memory_need(facts.config, role, facts.model.config), parallel_of(facts.config, role)
    if need is None:
        return
    ranks = parallel.ep // parallel.pods_per_group
    if need.total * ranks > facts.node.memory_bytes:
        yield error(
            "memory",
            f"the pod may take {size(facts.node.memory_bytes)}",
            f"{size(need.total * ranks)} for {ranks} ranks: weights and {role}.blocks",
            f"{role}.resources.limits.memory",
        )


def _caches(facts: Facts) -> Iterator[Finding]:
    for cache in facts.node.caches:
        if not cache.writable:
            yield error("jit-cache", f"{cache.path} cannot be written", "writable by the pod's user", "jitCache.kind")
        elif cache.free_bytes < _CACHE_BYTES:
            yield warning(
                "jit-cache-room", f"{size(cache.free_bytes)} free at {cache.path}", size(_CACHE_BYTES), "jitCache.kind"
            )


def size(count_bytes: float) -> str:
    for unit, scale in (("GiB", _GIB), ("MiB", _MIB)):
        if count_bytes >= scale:
            return f"{count_bytes / scale:.1f} {unit}"
    return f"{count_bytes / 1024:.0f} KiB"
