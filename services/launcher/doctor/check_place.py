"""Whether others can reach what this pod listens on. Pure."""

from collections.abc import Iterator

from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, error

_ANY = ("0.0.0.0", "::")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def check_place(facts: Facts) -> Iterator[Finding]:
    if facts.role == "scheduler":
        return
    pool = facts.config.prefill if facts.role == "prefill" else facts.config.decode
    host, field = pool.worker.host, f"{facts.role}.worker.host"
    if host in _ANY:
        limit = "the pod's own address: others are told this one"
        yield error("worker-address", f"{field} = {host}", limit, f"{facts.role}.worker")
    elif host in _LOCAL:
        if pool.parallel.pods_per_group > 1:
            yield error(
                "worker-address", f"{field} = {host}", "an address that other nodes reach", f"{facts.role}.worker"
            )
    elif facts.node.addresses and host not in facts.node.addresses:
        found = f"{field} = {host}: not an address of this pod"
        yield error("worker-address", found, ", ".join(sorted(facts.node.addresses)), f"{facts.role}.worker")
