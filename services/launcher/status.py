"""The pools of a running cluster, as a table."""

import asyncio

from rich.console import Console
from rich.table import Table

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import ClusterInfo
from services.launcher.ask import scheduler_address


def run_status(at: str) -> None:
    Console().print(pools_table(asyncio.run(cluster_of(scheduler_address(at)))))


async def cluster_of(address: str, timeout_s: float = 5.0) -> ClusterInfo:
    async with InferenceClient(address) as client:
        return await client.cluster(timeout_s)


def pools_table(cluster: ClusterInfo) -> Table:
    """Fits into 80 columns."""
    table = Table(title=f"{cluster.model}: {cluster.live_requests} live requests")
    table.add_column("instance", no_wrap=True)
    table.add_column("state")
    table.add_column("running", justify="right")
    table.add_column("queued tokens", justify="right")
    table.add_column("blocks in use", no_wrap=True)
    table.add_column("step ms", justify="right")
    for i in cluster.instances:
        used = i.total_blocks - i.free_blocks
        blocks = f"{_bar(used, i.total_blocks)} {used}/{i.total_blocks}"
        step_ms = f"{i.step_ms:.1f}" if i.step_ms else "-"
        table.add_row(i.instance, i.state, str(i.running), str(i.queued_tokens), blocks, step_ms)
    return table


def pools_line(cluster: ClusterInfo) -> str:
    """The same in one line, for logs."""
    pools = []
    for role in ("prefill", "decode"):
        instances = [i for i in cluster.instances if i.role == role]
        ready = sum(i.state == "ready" for i in instances)
        running = sum(i.running for i in instances)
        queued = sum(i.queued_tokens for i in instances)
        pools.append(f"{role}: {ready}/{len(instances)} ready, {running} running, {queued} tokens queued")
    return "; ".join([f"{cluster.live_requests} live requests", *pools])


def _bar(used: int, total: int, width: int = 10) -> str:
    filled = round(width * used / total) if total else 0
    return "█" * filled + "░" * (width - filled)
