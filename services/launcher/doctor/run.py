"""`tandem doctor`: gather, check, say what to change."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.config.cluster import ClusterConfig
from common.config.load import load_cluster
from common.config.place import parallel_of
from common.errors import ConfigError
from services.launcher.doctor.config_fault import config_faults
from services.launcher.doctor.diagnose import diagnose
from services.launcher.doctor.facts import DoctorRole, Facts, Node
from services.launcher.doctor.finding import Finding, Severity
from services.launcher.doctor.gather_dependencies import gather_dependencies
from services.launcher.doctor.gather_model import gather_model
from services.launcher.doctor.gather_node import gather_node
from services.launcher.doctor.gather_peers import gather_peers
from services.launcher.doctor.loopback import gather_loopback


def run_doctor(
    file: Path, role: DoctorRole, settings: Sequence[str], *, as_json: bool, patient: bool = False, hold_s: float = 0.0
) -> int:
    """Print the findings; the exit code is 1 when one is an error.

    Args:
        patient: wait for Redis and NATS as a process does at its start.
        hold_s: how long to stay after an error, for a supervisor would delete the pod and its log, and start it anew.
    """
    try:
        config = load_cluster(file, settings)
    except ConfigError as fault:
        findings = config_faults(fault, file)
    else:
        findings = diagnose(asyncio.run(gather(config, role, patient=patient)))
    show(findings, role, as_json=as_json)
    if not any(one.severity is Severity.ERROR for one in findings):
        return 0
    time.sleep(hold_s)
    return 1


async def gather(config: ClusterConfig, role: DoctorRole, *, patient: bool) -> Facts:
    """Facts of this machine and of what it can reach."""
    works = role != "scheduler"
    redis, records, nats = await gather_dependencies(config, patient=patient)
    peers = await gather_peers(records)
    model = await asyncio.to_thread(gather_model, Path(config.model.path), with_weights=works)
    node = await asyncio.to_thread(gather_node, with_gpus=works and config.model.device == "cuda")
    facts = Facts(config, role, node, model, redis, nats, peers)
    if works and node.transfer_library:
        facts = replace(facts, node=await asyncio.to_thread(_with_loopbacks, facts, node))
    return facts


def show(findings: Sequence[Finding], role: DoctorRole, *, as_json: bool) -> None:
    console = Console()
    if as_json:
        document = {"role": role, "findings": [{**asdict(one), "field": one.field} for one in findings]}
        console.print(json.dumps(document, indent=1), highlight=False, markup=False, soft_wrap=True)
        return
    if not findings:
        console.print(f"{role}: nothing found that needs a change", highlight=False)
        return
    table = Table(title=f"{role}: {len(findings)} finding{'s' * (len(findings) > 1)}")
    for name in ("severity", "check"):
        table.add_column(name, no_wrap=True)  # what one searches for stays in one piece
    for name in ("found", "must be", "change"):
        table.add_column(name, overflow="fold")
    for one in findings:
        table.add_row(one.severity.value, one.id, one.found, one.limit, one.change)
    console.print(table, highlight=False, markup=False)


def _with_loopbacks(facts: Facts, node: Node) -> Node:
    """A read on each GPU of the pod, or one in host memory."""
    devices = ["cpu"]
    if facts.on_gpu and facts.role != "scheduler":
        parallel = parallel_of(facts.config, facts.role)
        ranks = parallel.ep // parallel.pods_per_group
        devices = [f"cuda:{gpu.index}" for gpu in node.gpus[:ranks]]
    through_nic = facts.wants_rdma and bool(node.hcas)
    return replace(node, loopbacks=tuple(gather_loopback(device, through_nic=through_nic) for device in devices))
