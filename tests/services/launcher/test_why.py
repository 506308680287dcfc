import io

from rich.console import Console

from common.rpc.inference_data import Candidate, Explanation, Ledger, Placement
from services.launcher.why import print_explanation


def test_why_says_where_when_and_under_which_trace() -> None:
    placement = Placement("prefill", "p-1", (Candidate("p-0", 2.5, {"queue": 2.5}), Candidate("p-1", 0.25, {})))
    ledger = Ledger((("prefill", 0.75), ("steps", 0.25)), 1.0)
    explanation = Explanation("r", (placement,), ledger, 1, "stop", 3, 4, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
    said = io.StringIO()
    print_explanation(explanation, Console(file=said, width=100))
    text = said.getvalue()
    assert "r: stop, resumed 1 times, 4 blocks cached (3 predicted)" in text
    assert "trace 4bf92f3577b34da6a3ce929d0e0e4736" in text
    assert "prefill: p-1" in text
    assert text.index("0.25") < text.index("2.5")  # the cheapest first
    assert "75%" in text
