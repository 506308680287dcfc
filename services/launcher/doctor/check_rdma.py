"""The way of latent and expert exchange: devices, their environment, and a read whose bytes are compared. Pure."""

from collections.abc import Iterator

from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, error, warning

_HCA_LISTS = ("NCCL_IB_HCA", "NVSHMEM_HCA_LIST", "UCX_NET_DEVICES")
_GID_INDICES = ("NCCL_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX", "UCX_IB_GID_INDEX")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
_RDMA_TRANSPORTS = ("rc", "dc", "ud", "ib", "all")


def check_rdma(facts: Facts) -> Iterator[Finding]:
    if facts.role == "scheduler":
        return
    yield from _interfaces(facts)
    if not facts.node.transfer_library:
        kind = "gpu" if facts.on_gpu else "cpu"
        yield error("nixl", "NIXL cannot be imported", "the image's own nixl package", f"images.{kind}.tag")
    for one in facts.node.loopbacks:
        if one.error:
            yield error(
                "transfer-bytes",
                f"{one.length_bytes >> 20} MiB over {one.device}: {one.error}",
                "every byte arrives",
                "rdma.hcas" if facts.wants_rdma else "rdma.env",
            )
    if not facts.on_gpu:
        return
    if not facts.wants_rdma:
        yield warning("rdma-off", "no RDMA device", "latent crosses nodes over TCP without it", "rdma.enabled")
        return
    yield from _devices(facts)
    yield from _environment(facts)


def _devices(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if not node.rdma_device or not node.hcas:
        found = "no /dev/infiniband" if not node.rdma_device else "no HCA in /sys/class/infiniband"
        yield error("rdma-device", found, "the device plugin's resource, mounted", "rdma.resources")
    if not node.peer_memory:
        yield error(
            "peer-memory",
            "neither nvidia_peermem nor dmabuf",
            "one of them: NICs must reach GPU memory",
            "node: modprobe nvidia_peermem, or the open kernel module",
        )
    if not node.gpu_copy_device:
        limit = "GDRCopy shortens small transfers"
        yield warning("gdrcopy", "no /dev/gdrdrv", limit, "node: load gdrdrv, or securityProfile: privileged")
    named = _named_hcas(facts)
    idle = [hca.name for hca in node.hcas if not hca.active and (not named or hca.name in named)]
    if idle and (named or len(idle) == len(node.hcas)):
        yield error("hca-inactive", f"{', '.join(idle)}: no active port", "a port that is ACTIVE", "rdma.hcas")
    if node.hcas and not named:
        layers = {hca.link_layer for hca in node.hcas if hca.active}
        if len(layers) > 1:
            yield error("hca-mixed", "InfiniBand and Ethernet ports are active", "name those to use", "rdma.hcas")


def _environment(facts: Facts) -> Iterator[Finding]:
    node, environment = facts.node, facts.node.environment
    known = {hca.name for hca in node.hcas}
    for name in _HCA_LISTS:
        missing = sorted(_hcas_in(environment.get(name, "")) - known)
        if missing and known:
            found = f"{name} names {', '.join(missing)}"
            yield error("hca-unknown", found, f"one of {', '.join(sorted(known))}", "rdma.hcas")
    for name in _GID_INDICES:
        yield from _gid(facts, name)
    transports = environment.get("UCX_TLS", "")
    if transports and not any(one.startswith(_RDMA_TRANSPORTS) for one in transports.split(",")):
        yield error("ucx-tls", f"UCX_TLS = {transports}", "unset, or with rc: it has no RDMA transport", "rdma.env")
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        yield error("nccl-ib", "NCCL_IB_DISABLE is set", "unset", "rdma.env")
    remote = environment.get("NVSHMEM_REMOTE_TRANSPORT", "")
    if remote == "none":
        yield error("nvshmem-transport", "NVSHMEM_REMOTE_TRANSPORT = none", "ibgda, ibrc or unset", "rdma.env")


def _gid(facts: Facts, name: str) -> Iterator[Finding]:
    value = facts.node.environment.get(name, "")
    used = [hca for hca in facts.node.hcas if not _named_hcas(facts) or hca.name in _named_hcas(facts)]
    ethernet = [hca for hca in used if hca.link_layer == "Ethernet"]
    if not value:
        return
    if not value.isdecimal():
        yield error("gid-index", f"{name} = {value}", "a number", "rdma.gidIndex")
        return
    for hca in ethernet:
        if int(value) not in hca.gids:
            indices = ", ".join(map(str, hca.gids)) or "none"
            yield error("gid-index", f"{name} = {value}: {hca.name} has no address there", indices, "rdma.gidIndex")
            return


def _interfaces(facts: Facts) -> Iterator[Finding]:
    for name in _INTERFACES:
        value = facts.node.environment.get(name, "").lstrip("=^")
        wanted = [one for one in value.split(",") if one]
        excluded = facts.node.environment.get(name, "").startswith("^")
        if wanted and not excluded and not any(_interface_there(one, facts.node.interfaces) for one in wanted):
            limit = f"one of {', '.join(sorted(facts.node.interfaces))}"
            yield error("interface", f"{name} = {value}: no such interface", limit, "rdma.interface")


def _interface_there(wanted: str, interfaces: frozenset[str]) -> bool:
    return any(one.startswith(wanted) for one in interfaces)  # NCCL takes prefixes


def _named_hcas(facts: Facts) -> set[str]:
    names: set[str] = set()
    for name in _HCA_LISTS:
        names |= _hcas_in(facts.node.environment.get(name, ""))
    return names


def _hcas_in(value: str) -> set[str]:
    """Names in ``mlx5_0:1,mlx5_1``; patterns that exclude, and network interfaces of UCX, name none."""
    if value.startswith("^"):
        return set()
    names = {part.split(":")[0] for part in value.lstrip("=").split(",")}
    return {name for name in names if name and name != "all" and "_" in name}
