"""How fast an instance prefills, from what it did."""

from common.clock import Clock


class PrefillRate:
    """Uncached tokens finished per second during which any were under way; old evidence halves every `half_life_s`."""

    def __init__(self, clock: Clock, initial_tokens_per_s: float, half_life_s: float = 30.0) -> None:
        self._clock = clock
        self._half_life_s = half_life_s
        self._busy_s, self._tokens = 1.0, initial_tokens_per_s  # one second's worth of belief
        self._under_way = 0
        self._mark_s = clock.now_s()

    def begin(self) -> None:
        self._advance()
        self._under_way += 1

    def end(self, tokens: int) -> None:
        """`tokens` were computed; 0 when the work was given up."""
        self._advance()
        self._under_way -= 1
        self._tokens += tokens

    @property
    def tokens_per_s(self) -> float:
        return max(1.0, self._tokens / self._busy_s)

    def _advance(self) -> None:
        now_s = self._clock.now_s()
        elapsed_s, self._mark_s = now_s - self._mark_s, now_s
        fade = 0.5 ** (elapsed_s / self._half_life_s) if self._under_way else 1.0
        self._tokens *= fade
        self._busy_s = self._busy_s * fade + (elapsed_s if self._under_way else 0.0)
