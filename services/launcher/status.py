"""The pools of a running cluster, as a table."""

import asyncio
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from common.config.place import ROLES
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import ClusterInfo, InstanceInfo
from services.launcher.ask import scheduler_address

STALE_MS = 3000  # an older load report is none to the scheduler either


def run_status(at: str) -> None:
    Console().print(pools_table(asyncio.run(cluster_of(scheduler_address(at)))))


async def cluster_of(address: str, timeout_s: float = 5.0) -> ClusterInfo:
    async with InferenceClient(address) as client:
        return await client.cluster(timeout_s)


def pools_table(cluster: ClusterInfo, configured: Sequence[str] = ()) -> Table:
    """Fits into 80 columns.

    Args:
        configured: instances that should be there; those that the scheduler does not know get a row that says so.
    """
    table = Table(title=f"{cluster.model}: {cluster.live_requests} live requests")
    table.add_column("instance", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("running", justify="right")
    table.add_column("queued tokens", justify="right")
    table.add_column("blocks in use", no_wrap=True)
    table.add_column("step ms", justify="right")
    for i in cluster.instances:
        used = i.total_blocks - i.free_blocks
        blocks = f"{_bar(used, i.total_blocks)} {used}/{i.total_blocks}"
        step_ms = f"{i.step_ms:.1f}" if i.step_ms else "-"
        state = f"{i.state}, stale" if _stale(i) else i.state
        style = "dim" if _stale(i) else None
        table.add_row(i.instance, state, str(i.running), str(i.queued_tokens), blocks, step_ms, style=style)
    if any(_stale(i) for i in cluster.instances):
        oldest_s = max(i.report_age_ms for i in cluster.instances) / 1000
        table.caption = f"stale: its last load report came up to {oldest_s:.0f} s ago"
    known = {i.instance for i in cluster.instances}
    for name in configured:
        if name not in known:
            table.add_row(name, "[red]gone[/]", "-", "-", "-", "-")
    return table


def pools_line(cluster: ClusterInfo, configured: Sequence[str] = ()) -> str:
    """The same in one line, for logs."""
    pools = []
    for role in ROLES:
        instances = [i for i in cluster.instances if i.role == role]
        names = {i.instance for i in instances} | {name for name in configured if name.startswith(f"{role}-")}
        ready = sum(i.state == "ready" for i in instances)
        running = sum(i.running for i in instances)
        queued = sum(i.queued_tokens for i in instances)
        stale = sum(_stale(i) for i in instances)
        told = f", {stale} without a fresh load report" if stale else ""
        pools.append(f"{role}: {ready}/{len(names)} ready, {running} running, {queued} tokens queued{told}")
    return "; ".join([f"{cluster.live_requests} live requests", *pools])


def _stale(i: InstanceInfo) -> bool:
    """Its numbers are of the past, as all are when NATS is gone. One that has just come was not heard yet (-1)."""
    return i.report_age_ms > STALE_MS


def _bar(used: int, total: int, width: int = 8) -> str:
    filled = round(width * used / total) if total else 0
    return "█" * filled + "░" * (width - filled)
