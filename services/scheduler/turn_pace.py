"""How fast this replica's requests get their turn, as seen here and not as the instances say."""

from math import inf

from common.clock import Clock

_HALF_LIFE_S = 10.0  # of what was seen
_EVIDENCE_S = 1.0  # less of it says nothing yet


class TurnPace:
    """Prompt tokens that were given their turn, by the time in which somebody waited.

    Instances tell how fast they compute, but not how many other schedulers feed them, nor what else keeps turns back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = self._seconds = 0.0
        self._seen_s = clock.now_s()  # until then everything is counted
        self._waited_for = False

    def waits(self) -> None:
        """Somebody waits from now on."""
        if not self._waited_for:
            self._pass(counted=False)
            self._waited_for = True

    def granted(self, tokens: int) -> None:
        """One of those that wait got his turn."""
        if self._waited_for:
            self._pass(counted=True)
            self._tokens += tokens

    def nobody_waits(self) -> None:
        if self._waited_for:
            self._pass(counted=True)
            self._waited_for = False

    @property
    def tokens_per_s(self) -> float:
        """Infinite without evidence; falls while no turn comes."""
        waited_s = self._clock.now_s() - self._seen_s if self._waited_for else 0.0
        return self._tokens / (self._seconds + waited_s) if self._seconds >= _EVIDENCE_S else inf

    def _pass(self, *, counted: bool) -> None:
        now_s = self._clock.now_s()
        passed_s, self._seen_s = now_s - self._seen_s, now_s
        fade = 0.5 ** (passed_s / _HALF_LIFE_S)
        self._tokens *= fade
        self._seconds = self._seconds * fade + (passed_s if counted else 0.0)
