"""The order of stages under each schedule: what lies between a send and its receive."""

from typing import cast

import pytest

from common.errors import InternalError
from common.model.batch import Schedule
from common.model.layer import DecoderLayer, Microbatch
from common.model.schedules import run_expert_layers
from common.parallel.waits import Waits, ready


class LoggedLayer:
    """Notes the stages it is asked for."""

    def __init__(self, number: int, log: list[str]) -> None:
        self._number, self._log = number, log

    def project(self, m: str) -> Waits[None]:
        return self._note("project", m)

    def attend(self, m: str) -> Waits[None]:
        return self._note("attend", m)

    def dispatch(self, m: str, *, shared_first: bool) -> None:
        self._log.append(f"{m}{self._number} {'shared, dispatch' if shared_first else 'dispatch, shared'}")

    def expert(self, m: str) -> Waits[None]:
        yield
        self._log.append(f"{m}{self._number} expert")

    def combine(self, m: str) -> Waits[None]:
        yield
        self._log.append(f"{m}{self._number} combine")

    def _note(self, stage: str, m: str) -> Waits[None]:
        self._log.append(f"{m}{self._number} {stage}")
        return ready(None)


def stages(schedule: Schedule, microbatches: str, layers: int = 2) -> tuple[list[str], int]:
    """The log, and the number of waits."""
    log: list[str] = []
    run = run_expert_layers(
        [cast(DecoderLayer, LoggedLayer(i, log)) for i in range(layers)],
        [cast(Microbatch, m) for m in microbatches],
        schedule,
    )
    return log, sum(1 for _ in run)


def test_without_overlap() -> None:
    log, waits = stages(Schedule.NONE, "a", layers=1)
    assert log == ["a0 project", "a0 attend", "a0 shared, dispatch", "a0 expert", "a0 combine"]
    assert waits == 2


def test_the_shared_expert_covers_the_dispatch() -> None:
    log, waits = stages(Schedule.DISPATCH_OVERLAP, "a", layers=1)
    assert log == ["a0 project", "a0 attend", "a0 dispatch, shared", "a0 expert", "a0 combine"]
    assert waits == 2


def test_each_microbatch_covers_the_other() -> None:
    """Between a microbatch's sends and receives lies the other one's projection or attention."""
    log, waits = stages(Schedule.DUAL_MICROBATCH, "ab")
    assert log == [
        "a0 project", "a0 attend", "a0 dispatch, shared",
        "b0 project", "a0 expert", "b0 attend", "a0 combine", "b0 dispatch, shared",
        "a1 project", "b0 expert", "a1 attend", "b0 combine", "a1 dispatch, shared",
        "b1 project", "a1 expert", "b1 attend", "a1 combine", "b1 dispatch, shared",
        "b1 expert", "b1 combine",
    ]  # fmt: skip
    assert waits == 8


def test_a_wrong_number_of_microbatches_is_found() -> None:
    for schedule, microbatches in ((Schedule.NONE, "ab"), (Schedule.DUAL_MICROBATCH, "a")):
        with pytest.raises(InternalError, match="microbatches for"):
            stages(schedule, microbatches)
