import signal
import sys
import time
from pathlib import Path

import pytest

from services.launcher.child import Child, ChildDied

IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


def wait_for(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + 10
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline_s, f"{path} never held {text!r}"
        time.sleep(0.01)


def test_a_dead_child_is_told_with_its_last_lines(tmp_path: Path) -> None:
    program = "import sys; [print('line', i) for i in range(30)]; sys.exit('weights are missing')"
    child = Child("decode-0", [sys.executable, "-c", program], tmp_path / "log", {})
    assert child.end(time.monotonic() + 10)
    with pytest.raises(ChildDied, match=r"decode-0 ended with code 1") as died:
        child.check()
    assert "weights are missing" in died.value.last_lines[-1]
    assert len(died.value.last_lines) == 12


LOGS = """
from common.telemetry.logs import configure_logs, get_log
configure_logs("s-0", form={form!r})
get_log("s").error("cannot listen")
raise SystemExit("\\n".join(f"  File {{i}}" for i in range(30)))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_long_traceback_does_not_hide_the_error_above_it(tmp_path: Path, form: str) -> None:
    child = Child("s-0", [sys.executable, "-c", LOGS.format(form=form)], tmp_path / "log", {})
    assert child.end(time.monotonic() + 30)
    error, *rest = child.last_lines(3)
    assert "cannot listen" in error
    assert rest == ["  File 0", "  File 1"]


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    child = Child("stubborn", [sys.executable, "-c", IGNORES_SIGTERM], tmp_path / "log", {})
    wait_for(child.log, "up")
    child.check()
    child.signal(signal.SIGTERM)
    assert not child.end(time.monotonic() + 0.2)
    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        child.check()


def test_a_child_sees_its_parent_go_and_its_environment(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['WHO'], flush=True); sys.stdin.read(); print('gone', flush=True)"
    child = Child("c", [sys.executable, "-c", program], tmp_path / "log", {"WHO": "tandem"})
    wait_for(child.log, "tandem")
    child._process.stdin.close()  # type: ignore[union-attr]  # what the system does when a parent dies
    wait_for(child.log, "gone")
    assert child.end(time.monotonic() + 10)
