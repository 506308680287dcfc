"""Processes of one machine that must not outlive the one that started them."""

import os
import signal
import sys
import threading
import time


def tether_to_parent(grace_s: float) -> None:
    """End this process when its standard input ends, which the system does when the parent is gone.

    First as an operator would, by SIGTERM; `grace_s` later for good.
    """

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="tether", daemon=True).start()
