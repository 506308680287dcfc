import io

from rich.console import Console

from common.rpc.inference_data import ClusterInfo
from services.launcher.status import pools_line, pools_table
from tests.fakes.scheduler_view import instance

NAMES = ["prefill-0-0", "prefill-1-0", "decode-0-0"]


def table(cluster: ClusterInfo) -> dict[str, str]:
    """The rows by instance."""
    said = io.StringIO()
    Console(file=said, width=80).print(pools_table(cluster, NAMES))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.getvalue().splitlines()]
    assert "…" not in said.getvalue()
    return {row[0]: " ".join(row[1:]) for row in cells if len(row) > 1 and row[0]}


def test_what_is_configured_is_counted_whether_it_is_there_or_not() -> None:
    cluster = ClusterInfo("m", (instance("prefill", 0, running=2), instance("decode", 0, "draining")), "s", 1)
    line = pools_line(cluster, NAMES)
    assert line.startswith("1 live requests; prefill: 1/2 ready, 2 running, 0 tokens queued; decode: 0/1 ready, ")
    assert table(cluster)["prefill-1-0"] == "gone - - - -"
    assert pools_line(ClusterInfo("m", (), "s", 0), NAMES).count("0/2 ready") == 1
    assert pools_line(ClusterInfo("m", (), "s", 0), NAMES).count("0/1 ready") == 1


def test_load_that_is_of_the_past_is_marked() -> None:
    fresh, old = instance("prefill", 0), instance("decode", 0, report_age_ms=61_000, running=3)
    just_came = instance("prefill", 1, report_age_ms=-1)
    cluster = ClusterInfo("m", (fresh, just_came, old), "s", 0)
    rows = table(cluster)
    assert rows["prefill-0-0"].startswith("ready 0 ")
    assert rows["prefill-1-0"].startswith("ready 0 ")
    assert rows["decode-0-0"].startswith("ready, stale 3 ")
    prefill, decode = pools_line(cluster, NAMES).split("; ")[1:]
    assert prefill.endswith("tokens queued")
    assert decode.endswith("3 running, 0 tokens queued, 1 without a fresh load report")
