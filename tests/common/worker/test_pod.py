import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
POD = """
import sys
from common.worker.pod import RankCommand, run_pod
from common.process.tether import tether_to_parent
tether_to_parent(5.0)
seconds, *programs = sys.argv[1:]
ranks = [RankCommand(f"rank-{i}", (sys.executable, "-c", p), {"RANK": str(i)}) for i, p in enumerate(programs)]
sys.exit(run_pod(ranks, float(seconds)))
"""
SLEEPS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.write(1, f"{os.environ['RANK']} {os.getpid()}\\n".encode())  # in one piece: the ranks share the pipe
time.sleep(60)
"""
TETHERED = "from common.process.tether import tether_to_parent\ntether_to_parent(5.0)\n" + SLEEPS
TWICE = """
import os, signal, sys, time
heard = []
def hear(*_):
    heard.append(1)
    os.write(1, f"{os.environ['RANK']} {os.getpid()}\\n".encode())
    if len(heard) == 2:
        sys.exit(0)
signal.signal(signal.SIGTERM, hear)
os.write(1, f"{os.environ['RANK']} {os.getpid()}\\n".encode())
time.sleep(60)
"""
STUBBORN = SLEEPS.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")


def start(drain_timeout_s: float, *programs: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", POD, str(drain_timeout_s), *programs],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def rank_pids(pod: "subprocess.Popen[str]", count: int) -> dict[int, int]:
    assert pod.stdout is not None
    lines = [pod.stdout.readline().split() for _ in range(count)]
    return {int(rank): int(pid) for rank, pid in lines}


def assert_gone(pids: dict[int, int]) -> None:
    deadline_s = time.monotonic() + 10
    for pid in pids.values():
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
            assert time.monotonic() < deadline_s, f"process {pid} lives on"
            time.sleep(0.01)


def close(pod: "subprocess.Popen[str]") -> int:
    try:
        return pod.wait(10)
    finally:
        pod.kill()
        for stream in (pod.stdin, pod.stdout):
            if stream is not None:
                stream.close()


def test_a_killed_rank_ends_the_others_and_the_pod() -> None:
    pod = start(5.0, SLEEPS, SLEEPS, SLEEPS)
    pids = rank_pids(pod, 3)
    os.kill(pids[1], signal.SIGKILL)
    assert close(pod) == 1
    assert_gone(pids)


def test_a_rank_that_ends_unasked_is_a_fault_even_with_code_zero() -> None:
    pod = start(5.0, SLEEPS, "pass")
    pids = rank_pids(pod, 1)
    assert close(pod) == 1
    assert_gone(pids)


def test_sigterm_drains() -> None:
    pod = start(5.0, SLEEPS, SLEEPS)
    pids = rank_pids(pod, 2)
    pod.send_signal(signal.SIGTERM)
    assert close(pod) == 0
    assert_gone(pids)


def test_a_drain_that_takes_too_long_is_cut() -> None:
    pod = start(0.2, SLEEPS, STUBBORN)
    pids = rank_pids(pod, 2)
    pod.send_signal(signal.SIGTERM)
    assert close(pod) == 1
    assert_gone(pids)


def test_a_second_sigterm_reaches_the_ranks() -> None:
    pod = start(30.0, TWICE, TWICE)
    pids = rank_pids(pod, 2)
    pod.send_signal(signal.SIGTERM)
    assert rank_pids(pod, 2) == pids  # each has heard the first
    pod.send_signal(signal.SIGTERM)
    assert close(pod) == 0
    assert_gone(pids)


def test_ranks_do_not_outlive_a_killed_pod() -> None:
    pod = start(5.0, TETHERED, TETHERED)
    pids = rank_pids(pod, 2)
    pod.kill()
    close(pod)
    assert_gone(pids)
