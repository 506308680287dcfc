"""A circuit breaker: after failures in a row a dependency is left alone for a while, then tried by one caller."""

from common.clock import Clock


class Breaker:
    """Closed at first. `failures_to_open` failures in a row open it for `open_s`; then one trial decides.

    Not thread-safe.
    """

    def __init__(self, clock: Clock, failures_to_open: int, open_s: float) -> None:
        self._clock = clock
        self._failures_to_open = failures_to_open
        self._open_s = open_s
        self._failures = 0
        self._closed_again_s = 0.0

    @property
    def open(self) -> bool:
        """The dependency counts as unavailable; trials may be due."""
        return self._failures >= self._failures_to_open

    def admit(self) -> bool:
        """Whether to call now. While open, one call per `open_s` is let through."""
        if not self.open:
            return True
        now_s = self._clock.now_s()
        if now_s < self._closed_again_s:
            return False
        self._closed_again_s = now_s + self._open_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures == self._failures_to_open:
            self._closed_again_s = self._clock.now_s() + self._open_s
