"""Real sender processes against a real gRPC server that emits tokens at known times."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from common.errors import DependencyUnavailable, Overloaded
from loadgen.arrivals import poisson
from loadgen.cli import app
from loadgen.measure import Bounds, Distribution, saturation, summarize
from loadgen.record import CLIENT_TIMEOUT, COUNT_MISMATCH, NO_USAGE, SHORT
from loadgen.run import Outcome, run
from loadgen.workload import Schedule, Shaping, Target, schedule, synthetic_rows
from tests.fakes.inference_server import Answer, Emission, InferenceServer

ROOT = Path(__file__).resolve().parents[2]
TARGET = Target("fake", 2000, 4096)


def plan(count: int, rate_per_s: float, output_tokens: int) -> Schedule:
    rows = synthetic_rows(count, prompt_tokens=32, output_tokens=output_tokens)
    return schedule(rows, poisson(rate_per_s, count, seed=3), TARGET, Shaping(scale=Fraction(1), seed=100))


def steady(first_tokens: int, later: int, tokens_a_message: int, gap_s: float) -> Answer:
    """The first message after 50 ms, then `later` messages `gap_s` apart."""
    emissions = [Emission(0.05, first_tokens)]
    emissions += [Emission(0.05 + (i + 1) * gap_s, tokens_a_message) for i in range(later)]
    return Answer(emissions)


def received(server: InferenceServer, count: int) -> None:
    deadline_s = time.monotonic() + 60
    while len(server.servicer.received) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def mean_ms(values: Distribution | None) -> float:
    assert values is not None
    return values.mean_ms


@pytest.mark.parametrize(
    ("first_tokens", "tokens_a_message", "gap_s", "itl_ms"),
    [(4, 1, 0.02, 20.0), (1, 1, 0.02, 20.0), (2, 4, 0.04, 10.0)],
    ids=["four tokens in the first message", "one token a message", "four tokens a message"],
)
def test_itl_is_within_two_percent_of_the_truth(
    first_tokens: int, tokens_a_message: int, gap_s: float, itl_ms: float
) -> None:
    later = 40
    with InferenceServer(lambda _: steady(first_tokens, later, tokens_a_message, gap_s)) as server:
        planned = plan(6, 20.0, first_tokens + later * tokens_a_message)
        outcome = run(server.address, planned.requests, senders=1, timeout_s=30.0)
        emitted = server.servicer.emitted
    summary = summarize(outcome.records, Bounds())
    assert summary.errors == {}
    # The server's own notes, in case this machine kept it from its script.
    truth_ms = np.mean([(e[-1][0] - e[0][0]) * 1000.0 / (later * tokens_a_message) for e in emitted.values()])
    assert truth_ms == pytest.approx(itl_ms, rel=0.02)
    assert mean_ms(summary.itl) == pytest.approx(truth_ms, rel=0.02)
    assert mean_ms(summary.tpot) == pytest.approx(truth_ms, rel=0.02)
    assert mean_ms(summary.message_gap) == pytest.approx(truth_ms * tokens_a_message, rel=0.02)
    assert summary.completion_tokens == 6 * (first_tokens + later * tokens_a_message)


def test_requests_leave_on_schedule_whatever_the_answers_do() -> None:
    # Every answer takes 1 s: a closed loop of two senders would need 20 s for 40 requests.
    with InferenceServer(lambda _: Answer([Emission(1.0, 1)])) as server:
        planned = plan(40, 40.0, 1)
        outcome = run(server.address, planned.requests, senders=2, timeout_s=30.0)
        received = server.servicer.received
    assert {r.index for r in outcome.records} == set(range(40))
    by_index = {r.index: r for r in outcome.records}
    for one in planned.requests:
        record = by_index[one.index]
        assert record.scheduled_s == one.at_s
        assert 0 <= record.lag_s < 0.25
        assert record.error == ""
        assert record.prompt_tokens == 32
    # The server saw them in the gaps of the schedule, not of the answers.
    came_s = np.array([received[100 + i][0] for i in range(40)])
    scheduled_s = np.array([one.at_s for one in planned.requests])
    assert np.abs((came_s - came_s[0]) - (scheduled_s - scheduled_s[0])).max() < 0.25
    assert outcome.wall_s < scheduled_s[-1] + 5.0


def test_ttft_counts_from_the_schedule_and_from_the_send() -> None:
    with InferenceServer(lambda _: steady(1, 2, 1, 0.01)) as server:
        outcome = run(server.address, plan(4, 10.0, 3).requests, senders=1, timeout_s=30.0)
        emitted, received = server.servicer.emitted, server.servicer.received
    for record in outcome.records:
        seed = 100 + record.index
        truth_s = emitted[seed][0][0] - received[seed][0]
        assert truth_s <= record.arrivals_s[0] - record.sent_s < truth_s + 0.05
        assert record.arrivals_s[0] - record.scheduled_s == pytest.approx(
            record.arrivals_s[0] - record.sent_s + record.lag_s
        )


def faulty(request_seed: int) -> Answer:
    return {
        0: steady(1, 2, 1, 0.001),
        1: Answer([Emission(0.0, 3)], usage_tokens=4),
        2: Answer([Emission(0.0, 2)]),
        3: Answer([Emission(0.0, 3)], usage=False),
        4: Answer([Emission(0.0, 1)], error=Overloaded("prefill queue", 2.0)),
        5: Answer([Emission(60.0, 3)]),
    }[request_seed - 100]


def test_every_broken_promise_is_an_error_of_its_own_kind() -> None:
    with InferenceServer(lambda request: faulty(request.sampling.seed or 0)) as server:
        outcome = run(server.address, plan(6, 100.0, 3).requests, senders=1, timeout_s=1.0)
    errors = {r.index: r.error for r in outcome.records}
    assert errors == {0: "", 1: COUNT_MISMATCH, 2: SHORT, 3: NO_USAGE, 4: Overloaded.reason, 5: CLIENT_TIMEOUT}
    summary = summarize(outcome.records, Bounds())
    assert summary.succeeded == 1
    assert sum(summary.errors.values()) == 5


def test_a_dead_address_is_one_clear_error() -> None:
    result = CliRunner().invoke(app, ["--at", "127.0.0.1:1", "--rate", "1"])
    assert result.exit_code == 1
    assert DependencyUnavailable.__name__ not in result.output
    assert "127.0.0.1:1" in result.output


def test_a_generator_that_cannot_keep_up_says_so() -> None:
    with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server:
        outcome: Outcome = run(server.address, plan(300, 100_000.0, 1).requests, senders=1, timeout_s=30.0)
    assert all(r.error == "" for r in outcome.records)
    assert saturation(outcome.records, outcome.senders, limit_ms=2.0).saturated


class TestCommand:
    def test_a_good_run_passes_and_writes_what_it_printed(self, tmp_path: Path) -> None:
        files = ["--json", str(tmp_path / "s.json"), "--jsonl", str(tmp_path / "r.jsonl")]
        shape = ["--requests", "8", "--rate", "20", "--prompt-tokens", "16", "--output-tokens", "5", "--senders", "2"]
        bounds = ["--slo-ttft-ms", "5000", "--slo-tpot-ms", "1", "--max-lag-ms", "1000"]
        with InferenceServer(lambda _: steady(1, 4, 1, 0.01)) as server:
            result = CliRunner().invoke(app, ["--at", server.address, *shape, *bounds, *files])
        assert result.exit_code == 0, result.output
        assert "passed" in result.output
        document = json.loads((tmp_path / "s.json").read_text())
        assert document["verdict"] == "passed"
        assert document["summary"]["requests"] == document["summary"]["succeeded"] == 8
        assert document["summary"]["completion_tokens"] == 40
        assert document["summary"]["goodput_share"] == 0.0, "10 ms a token is not within 1 ms"
        lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
        assert [line["index"] for line in lines] == list(range(8))
        assert all(sum(line["arrival_tokens"]) == 5 for line in lines)

    def test_errors_fail_the_run(self) -> None:
        shape = ["--requests", "3", "--rate", "50", "--output-tokens", "5", "--senders", "1"]
        with InferenceServer(lambda _: Answer([Emission(0.0, 4)])) as server:
            result = CliRunner().invoke(app, ["--at", server.address, *shape])
        assert result.exit_code == 1
        assert SHORT in result.output

    def test_saturation_fails_the_run(self) -> None:
        shape = ["--requests", "3", "--rate", "50", "--output-tokens", "1", "--max-lag-ms", "0", "--senders", "1"]
        with InferenceServer(lambda _: Answer([Emission(0.0, 1)])) as server:
            result = CliRunner().invoke(app, ["--at", server.address, *shape])
        assert result.exit_code == 3
        assert "generator saturated" in result.output

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "rate = None"),
            (["--requests", "5"], "rate = None"),
            (["--rate", "0"], "rate = 0.0: a finite number of requests per second above 0"),
            (["--rate", "nan"], "rate = nan: a finite number"),
            (["--rate", "inf"], "rate = inf: a finite number"),
            (["--rate", "1", "--slo-ttft-ms", "nan"], "slo-ttft-ms = nan"),
            (["--rate", "1", "--cv", "-1"], "cv = -1.0"),
            (["--rate", "1", "--speed", "0"], "speed = 0.0"),
            (["--rate", "1", "--scale-lengths", "1/0"], "scale-lengths = 1/0"),
            (["--rate", "1", "--scale-lengths", "x"], "scale-lengths = x"),
            (["--rate", "1", "--shared-prefix-tokens", "257"], "shared-prefix-tokens = 257: at most the prompt's 256"),
            (["--rate", "1", "--shared-prefix-tokens", "129", "--scale-lengths", "1/2"], "at most the prompt's 128"),
            (["--rate", "1", "--requests", "1", "--warmup-s", "0.1"], "warmup-s = 0.1: at most 0"),
            (["--trace", "missing.csv"], "missing.csv"),
            (["--rate", "1", "--json", "missing/s.json"], "json = missing/s.json: a file that can be written: No such"),
            (["--rate", "1", "--jsonl", "."], "jsonl = .: a file that can be written: Is a directory"),
        ],
    )
    def test_bad_options_are_named_before_anything_is_sent(self, options: list[str], named: str) -> None:
        result = CliRunner().invoke(app, ["--at", "127.0.0.1:1", *options])
        assert result.exit_code == 2
        assert named in result.output

    def test_what_can_be_written_is_left_as_it_was(self, tmp_path: Path) -> None:
        old = tmp_path / "old.json"
        old.write_text("old")
        files = ["--json", str(old), "--jsonl", str(tmp_path / "new.jsonl")]
        assert CliRunner().invoke(app, ["--at", "127.0.0.1:1", "--rate", "1", *files]).exit_code == 1
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old.json", "old")]

    def test_ctrl_c_leaves_a_report_of_what_had_ended(self, tmp_path: Path) -> None:
        """To the whole foreground group, as a terminal does."""
        shape = ["--requests", "40", "--rate", "20", "--output-tokens", "1", "--senders", "2"]
        file = tmp_path / "s.json"
        script = lambda request: Answer([Emission(0.0 if (request.sampling.seed or 0) < 4 else 60.0, 1)])  # noqa: E731
        with InferenceServer(script) as server:
            process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "load", "--at", server.address, *shape, "--json", str(file)],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            try:
                received(server, 8)  # the first four have ended long ago
                for sender in psutil.Process(process.pid).children():
                    sender.send_signal(signal.SIGINT)
                received(server, 12)  # senders go on: when they end is not theirs to decide
                os.killpg(process.pid, signal.SIGINT)
                said, errors = process.communicate(timeout=20)
            finally:
                process.kill()
        assert (process.returncode, errors) == (130, "")
        assert "4 of 4 succeeded" in said
        assert said.splitlines()[-1] == "interrupted"
        document = json.loads(file.read_text())
        assert (document["verdict"], document["summary"]["succeeded"]) == ("interrupted", 4)
