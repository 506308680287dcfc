"""`tandem why ID`: the placement of a recent request and its time ledger."""

import asyncio

from rich.console import Console
from rich.table import Table

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import Explanation, Placement
from services.launcher.ask import scheduler_address


def run_why(request_id: str, at: str) -> None:
    async def explained() -> Explanation:
        async with InferenceClient(scheduler_address(at)) as client:
            return await client.explain(request_id)

    print_explanation(asyncio.run(explained()), Console())


def print_explanation(explanation: Explanation, console: Console) -> None:
    console.print(
        f"{explanation.request_id}: {explanation.outcome}, resumed {explanation.resumes} times, "
        f"{explanation.actual_cached_blocks} blocks cached ({explanation.predicted_cached_blocks} predicted)",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"trace {explanation.trace_id}, in the logs of every process it met", highlight=False, soft_wrap=True)
    for placement in explanation.placements:
        console.print(_placement_table(placement))
    ledger = Table("part", "ms", "share", title="where the time went")
    for part, seconds in explanation.ledger.entries:
        share = seconds / explanation.ledger.total_s if explanation.ledger.total_s else 0.0
        ledger.add_row(part, f"{seconds * 1000:.1f}", f"{share:.0%}")
    ledger.add_row("total", f"{explanation.ledger.total_s * 1000:.1f}", "")
    console.print(ledger)


def _placement_table(placement: Placement) -> Table:
    parts = sorted({part for candidate in placement.candidates for part in candidate.parts})
    table = Table("instance", "cost", *parts, title=f"{placement.role}: {placement.chosen}")
    for candidate in sorted(placement.candidates, key=lambda c: c.cost):
        values = [f"{candidate.parts[part]:.4g}" if part in candidate.parts else "" for part in parts]
        style = "bold" if candidate.instance == placement.chosen else None
        table.add_row(candidate.instance, f"{candidate.cost:.4g}", *values, style=style)
    return table
