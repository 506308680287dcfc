"""`tandem up`: a cluster in the foreground until Ctrl-C, SIGTERM or the end of its terminal."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from common.config.cluster import ClusterConfig
from common.config.load import load_cluster
from common.telemetry.logs import LogFormat
from services.launcher.child import ChildDied
from services.launcher.cluster import LocalCluster
from services.launcher.processes import instance_names
from services.launcher.run_directory import RunDirectory, runs_directory
from services.launcher.status import pools_line, pools_table

_TABLE_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 10.0


def run_up(file: Path, settings: list[str], run_dir: Path | None, *, keep_going: bool, log_format: LogFormat) -> None:
    console = Console(stderr=True)
    config = load_cluster(file, settings)
    with running_cluster(config, run_dir, console, log_format=log_format) as cluster:
        console.print(
            f"front door {cluster.schedulers[0]}, logs in {cluster.run.logs}", highlight=False, soft_wrap=True
        )
        at = "" if run_dir is None else f" --at {cluster.schedulers[0]}"  # clients look under the default directory
        console.print(f'try: tandem generate "In the beginning"{at}', highlight=False, soft_wrap=True)
        _show(cluster, console, keep_going=keep_going)


@contextmanager
def running_cluster(
    config: ClusterConfig,
    run_dir: Path | None,
    console: Console,
    start_timeout_s: float | None = None,
    log_format: LogFormat = "text",
) -> Iterator[LocalCluster]:
    """A ready cluster, stopped in order at the end, however that comes; a second Ctrl-C or SIGTERM then kills.

    Raises:
        KeyboardInterrupt, SystemExit: Ctrl-C, or a signal as the command handles it; raised again after the stop.
    """
    run = RunDirectory.create(run_dir or runs_directory() / config.cluster)
    cluster = LocalCluster(config, run, log_format)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    try:
        cluster.start()
        _wait(cluster, console, start_timeout_s or config.decode.worker.start_timeout_s)
        yield cluster
    except (KeyboardInterrupt, SystemExit):
        console.print("stopping")
        raise
    finally:
        _stop(cluster, console)


def _wait(cluster: LocalCluster, console: Console, timeout_s: float) -> None:
    """Say what the start waits for: a moving line on a terminal, else one line whenever that changes."""
    said: list[str] = []
    begun_s = time.monotonic()
    with console.status("starting") as status:

        def on_wait(missing: list[str]) -> None:
            text = f"waiting for {', '.join(missing)}"
            status.update(f"{text} ({time.monotonic() - begun_s:.0f} s)")
            if not console.is_terminal and said[-1:] != [text]:
                said.append(text)
                console.print(text, highlight=False, soft_wrap=True)

        cluster.wait_ready(timeout_s, on_wait)
    console.print(f"ready after {time.monotonic() - begun_s:.1f} s", highlight=False, soft_wrap=True)


def _show(cluster: LocalCluster, console: Console, *, keep_going: bool) -> None:
    """The live table, or a line now and then where nobody can watch a table."""
    names = instance_names(cluster.config)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            while True:
                _check(cluster, console, keep_going=keep_going)
                pools = cluster.ask(cluster.schedulers[0])
                live.update(pools_table(pools, names) if pools else Text(f"{cluster.schedulers[0]} does not answer"))
                time.sleep(_TABLE_INTERVAL_S)
    said, due_s = "", 0.0
    while True:
        _check(cluster, console, keep_going=keep_going)
        if time.monotonic() >= due_s:
            pools = cluster.ask(cluster.schedulers[0])
            line = pools_line(pools, names) if pools else f"{cluster.schedulers[0]} does not answer"
            if line != said:
                console.print(line, highlight=False, soft_wrap=True)
            said, due_s = line, time.monotonic() + _LINE_INTERVAL_S
        time.sleep(_TABLE_INTERVAL_S)


def _check(cluster: LocalCluster, console: Console, *, keep_going: bool) -> None:
    try:
        cluster.check()
    except ChildDied as died:
        if not keep_going:
            raise
        console.print(str(died), style="red", highlight=False, soft_wrap=True)
        cluster.forget(died.name)


def _stop(cluster: LocalCluster, console: Console) -> None:
    try:
        killed = cluster.stop()
    except (KeyboardInterrupt, SystemExit):
        cluster.hurry()
        killed = cluster.stop()
    if killed:
        console.print(f"killed after their grace: {', '.join(killed)}", style="red", highlight=False, soft_wrap=True)
