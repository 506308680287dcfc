"""Where the command `tandem` begins: before everything that takes time to import, so that Ctrl-C is heard meanwhile."""

import signal
import sys


def main() -> None:
    try:
        from services.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
