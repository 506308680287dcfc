import json
import logging
from collections.abc import Iterator

import pytest

from common.telemetry.logs import configure_logs, get_log
from common.telemetry.trace import continued, tracing


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before


def test_text_lines_name_process_event_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("decode-0-0")
    get_log("x").info("joined", work_id="a1", note="two words", seconds=0.123456)
    line = capsys.readouterr().err
    assert line.endswith('decode-0-0 joined work_id=a1 note="two words" seconds=0.1235\n')
    assert line.count("\n") == 1


def test_json_lines_parse_and_carry_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("decode-0-0", form="json")
    try:
        int("broken")
    except ValueError as error:
        get_log("x").error("stopped", error=error, step=3)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["step"], line["level"], line["process"]) == ("stopped", 3, "error", "decode-0-0")
    assert "ValueError: invalid literal" in line["traceback"]


def test_json_lines_carry_the_trace_id_of_their_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("decode-0-0", form="json")
    trace = continued(None)
    with tracing(trace):
        get_log("x").info("joined")
    get_log("x").info("stepped")
    about, other = map(json.loads, capsys.readouterr().err.splitlines())
    assert about["trace_id"] == trace.trace_id
    assert "trace_id" not in other


def test_the_standard_library_goes_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("scheduler-0", level="WARNING")
    logging.getLogger("foreign").warning("slow by %d", 3)
    logging.getLogger("foreign").info("unseen")
    assert capsys.readouterr().err.endswith("scheduler-0 slow by 3\n")
