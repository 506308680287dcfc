"""Stop strings over a stream: nothing that may be the beginning of one leaves before it is known not to be."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`start` is the character at which the text ends, counted over all that was fed."""

    stop: str
    start: int


class StopStrings:
    """Finds the stop string that is complete first; of two that end together, the longer.

    One Knuth-Morris-Pratt automaton a stop string, so a character costs the same whatever was before it, and the
    answer does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(sorted(stops, key=len, reverse=True))
        self._failures = tuple(_failure_function(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._fed = 0

    @property
    def held(self) -> int:
        """Characters at the end of what was fed that may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> StopMatch | None:
        if not self._stops:
            self._fed += len(text)
            return None
        for character in text:
            self._fed += 1
            for i, stop in enumerate(self._stops):
                failures, matched = self._failures[i], self._matched[i]
                while matched and (matched == len(stop) or stop[matched] != character):
                    matched = failures[matched - 1]
                self._matched[i] = matched + 1 if stop[matched] == character else 0
            for i, stop in enumerate(self._stops):
                if self._matched[i] == len(stop):
                    return StopMatch(stop, self._fed - len(stop))
        return None


def _failure_function(pattern: str) -> tuple[int, ...]:
    """For each prefix the length of its longest proper border."""
    failures = [0] * len(pattern)
    border = 0
    for i in range(1, len(pattern)):
        while border and pattern[border] != pattern[i]:
            border = failures[border - 1]
        if pattern[border] == pattern[i]:
            border += 1
        failures[i] = border
    return tuple(failures)
