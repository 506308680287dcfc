"""Signals that end a command in order: what it is in the middle of is left, and the exit code says which it was."""

import errno
import os
import signal
import sys


def end_on(number: signal.Signals, code: int) -> None:
    """From now on, unless whoever started the command has the signal ignored, as nohup does with SIGHUP.

    As the first process of a container a command would not see SIGTERM at all, unless it handles it.
    """

    def end(_number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)  # the shell may repeat what the system said; that is no haste
            _let_go_of_terminal()
        sys.exit(code)

    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, end)


def _let_go_of_terminal() -> None:
    """What is written to a terminal that was closed is an error, and there is still something to say at the end."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)
