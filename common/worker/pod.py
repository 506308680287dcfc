"""The pod process: starts a node's rank processes and holds to one rule, that they all run or all end.

A dead rank leaves its EP group unable to step, so the pod ends the others at once and itself with a code that is not
zero. Nothing is restarted here: whoever runs pods recreates the group, and can see that it did.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from common.telemetry.logs import get_log

log = get_log(__name__)

_KILL_AFTER_S = 2.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class RankCommand:
    name: str
    command: tuple[str, ...]
    environment: dict[str, str]


def run_pod(commands: Sequence[RankCommand], drain_timeout_s: float) -> int:
    """Run the ranks until they end; returns the pod's exit code.

    SIGTERM and SIGINT drain: each is passed on as SIGTERM, so that the second cuts the drain short, and ranks that have
    not ended `drain_timeout_s` after the first are killed. Must be called from the main thread.
    """
    asked_to_end = _Asked()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: asked_to_end.again())
    ranks = {c.name: _start(c) for c in commands}
    log.info("ranks started", ranks=len(ranks))
    try:
        return _supervise(ranks, asked_to_end, drain_timeout_s)
    finally:
        _kill(list(ranks.values()))


class _Asked:
    """How often somebody asked for the end. A number alone: a signal that comes while its lock is held would find an
    event locked for ever.
    """

    def __init__(self) -> None:
        self.times = 0

    def again(self) -> None:
        self.times += 1


def _supervise(ranks: dict[str, subprocess.Popen[bytes]], asked_to_end: _Asked, drain_timeout_s: float) -> int:
    deadline_s: float | None = None
    passed_on = 0
    while True:
        if asked_to_end.times > passed_on:
            passed_on = asked_to_end.times
            if deadline_s is None:
                log.info("draining", ranks=len(ranks), timeout_s=drain_timeout_s)
                deadline_s = time.monotonic() + drain_timeout_s
            for process in ranks.values():
                process.send_signal(signal.SIGTERM)
        codes = {name: process.poll() for name, process in ranks.items()}
        for name, code in codes.items():
            if code is not None and (code != 0 or deadline_s is None):
                log.error("rank ended, ending its group", rank=name, code=code)
                return 1
        if all(code == 0 for code in codes.values()):
            log.info("drained")
            return 0
        if deadline_s is not None and time.monotonic() > deadline_s:
            log.error("drain timed out", live=sum(code is None for code in codes.values()))
            return 1
        time.sleep(_LOOK_S)


def _start(rank: RankCommand) -> subprocess.Popen[bytes]:
    # A pipe that is never written: its end tells the rank that the pod is gone.
    return subprocess.Popen(rank.command, stdin=subprocess.PIPE, env={**os.environ, **rank.environment})


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ranks of a broken group wait for each other in receives that no drain can end."""
    for process in processes:
        if process.poll() is None:
            process.kill()
    deadline_s = time.monotonic() + _KILL_AFTER_S
    for process in processes:
        process.wait(max(0.0, deadline_s - time.monotonic()))
        if process.stdin is not None:
            process.stdin.close()
