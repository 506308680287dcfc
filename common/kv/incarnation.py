"""The number a worker draws at each start; everything that refers to its memory carries it."""

import secrets
import time

_RANDOM_BITS = 20


def draw_incarnation() -> int:
    """Milliseconds of wall time above 20 random bits, below 2**63.

    Later starts draw higher numbers as long as the wall clock does not go back, so that readers of hints may keep the
    highest. Whatever needs safety compares for equality only.
    """
    return (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
