"""Latencies of records made by hand, against values worked out by hand."""

import io

import pytest
from rich.console import Console

from loadgen.measure import Bounds, Saturation, distribution, latency, saturation, summarize
from loadgen.record import Record
from loadgen.report import Report, Verdict, show
from loadgen.sender import SenderDone


def record(arrivals_s: tuple[float, ...], tokens: tuple[int, ...], **changes: object) -> Record:
    fields: dict[str, object] = {
        "index": 0,
        "scheduled_s": 1.0,
        "sent_s": 1.1,
        "ended_s": 3.0,
        "arrivals_s": arrivals_s,
        "arrival_tokens": tokens,
        "completion_tokens": sum(tokens),
    }
    return Record(**{**fields, **changes})


def test_a_message_of_several_tokens_is_several_gaps() -> None:
    one = latency(record((1.5, 1.6, 2.0), (4, 1, 2)))
    assert one.ttft_s == pytest.approx(0.5)
    assert one.ttft_from_send_s == pytest.approx(0.4)
    assert one.e2e_s == pytest.approx(1.0)
    assert one.itl_s == pytest.approx((0.1, 0.2, 0.2))
    assert one.gaps_s == pytest.approx((0.1, 0.4))
    # 0.5 s for the three tokens after the first message; counting all seven would say 0.083 s.
    assert one.tpot_s == pytest.approx(0.5 / 3)


def test_one_message_has_no_gap_to_speak_of() -> None:
    one = latency(record((1.5,), (4,)))
    assert (one.tpot_s, one.itl_s) == (None, ())
    assert distribution(one.itl_s) is None


def test_a_summary_counts_successes_only_and_says_what_failed() -> None:
    records = [
        record((1.5, 2.5), (1, 10), prompt_tokens=100, cached_tokens=64, drafted_tokens=8, accepted_tokens=6),
        record((2.5, 2.6), (1, 1), scheduled_s=2.0, sent_s=2.0, prompt_tokens=50),
        record((2.5,), (1,), scheduled_s=2.5, error="OVERLOADED", message="full"),
        record((), (), scheduled_s=3.0, sent_s=3.0, ended_s=4.0, error="CLIENT_TIMEOUT"),
    ]
    summary = summarize(records, Bounds(ttft_ms=600.0, tpot_ms=99.0))
    assert (summary.requests, summary.succeeded) == (4, 2)
    assert summary.errors == {"OVERLOADED": 1, "CLIENT_TIMEOUT": 1}
    assert summary.examples == {"OVERLOADED": "full", "CLIENT_TIMEOUT": ""}
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (150, 64, 13)
    assert summary.span_s == pytest.approx(3.0)
    assert summary.scheduled_rate_per_s == pytest.approx(1.5)
    assert summary.completed_rate_per_s == pytest.approx(2 / 3)
    assert summary.completion_tokens_per_s == pytest.approx(13 / 3)
    assert summary.draft_acceptance == pytest.approx(0.75)
    # The first has 100 ms a token, the second 100 ms too: neither is within 99.
    assert summary.goodput_share == 0.0
    assert summarize(records, Bounds(ttft_ms=600.0)).goodput_share == pytest.approx(0.5)
    assert summarize(records, Bounds()).goodput_share is None


def test_warm_up_requests_are_not_counted() -> None:
    records = [record((1.5,), (1,)), record((2.5,), (1,), scheduled_s=2.0)]
    assert summarize(records, Bounds(), warmup_s=1.5).requests == 1


def test_nothing_is_not_zero() -> None:
    summary = summarize([], Bounds(ttft_ms=1.0))
    assert (summary.ttft, summary.goodput_share, summary.draft_acceptance) == (None, None, None)


def test_the_worst_sender_decides_saturation() -> None:
    on_time = [record((1.5,), (1,), sent_s=1.001)]
    idle, late = SenderDone(0, (0.0,) * 100, 0.1), SenderDone(1, (0.0,) * 90 + (0.05,) * 10, 0.9)
    assert not saturation(on_time, [idle], limit_ms=20.0).saturated
    judged = saturation(on_time, [idle, late], limit_ms=20.0)
    assert judged.saturated
    assert judged.cpu_share_max == 0.9
    assert saturation([record((1.5,), (1,))], [idle], limit_ms=20.0).saturated, "sent 100 ms late"


@pytest.mark.parametrize(
    ("error", "lag_ms", "verdict", "code"),
    [
        ("", 1.0, Verdict.PASSED, 0),
        ("", 21.0, Verdict.SATURATED, 3),
        ("OVERLOADED", 1.0, Verdict.ERRORS, 1),
        ("OVERLOADED", 21.0, Verdict.ERRORS, 1),
    ],
)
def test_verdicts(error: str, lag_ms: float, verdict: Verdict, code: int) -> None:
    summary = summarize([record((1.5,), (1,), error=error)], Bounds())
    report = Report({}, summary, Saturation(lag_ms, 0.0, 0.1, 20.0))
    assert report.verdict is verdict
    assert verdict.exit_code == code


def test_a_run_without_a_measured_request_has_not_passed() -> None:
    report = Report({}, summarize([record((1.5,), (1,))], Bounds(), warmup_s=9.0), Saturation(0.0, 0.0, 0.1, 20.0))
    assert report.verdict is Verdict.UNMEASURED
    assert report.verdict.exit_code == 1


def test_an_interrupted_run_says_so_whatever_it_measured() -> None:
    for error in ("", "OVERLOADED"):
        summary = summarize([record((1.5,), (1,), error=error)], Bounds())
        report = Report({}, summary, Saturation(99.0, 0.0, 0.1, 20.0), interrupted=True)
        assert (report.verdict, report.verdict.exit_code) == (Verdict.INTERRUPTED, 130)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_number_is_cut_on_a_narrow_terminal(width: int) -> None:
    slow = record((12345.6, 25812.3), (1, 20000), scheduled_s=1.0, ended_s=99999.0, prompt_tokens=12345678901)
    said = io.StringIO()
    report = Report({}, summarize([slow], Bounds()), Saturation(0.0, 0.0, 0.1, 20.0))
    show(report, Console(file=said, width=width))
    text = said.getvalue()
    assert "…" not in text
    assert text.count(" 12344600.0") == 6  # TTFT: mean, percentiles, max
    assert text.count(" 25811300.0") == 6  # E2E
    assert " 20000" in text
    assert " 12345678901" in text
