"""How fast an instance prefills, from what it did."""


class PrefillRate:
    """Tokens computed per second of steps that computed any; evidence halves with every `half_life_s` of such time."""

    def __init__(self, half_life_s: float = 30.0) -> None:
        self._half_life_s = half_life_s
        self.reset()

    def reset(self) -> None:
        """Forget all evidence."""
        self._busy_s = self._tokens = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A step of `seconds` computed so many tokens."""
        fade = 0.5 ** (seconds / self._half_life_s)
        self._tokens = self._tokens * fade + tokens
        self._busy_s = self._busy_s * fade + seconds

    @property
    def tokens_per_s(self) -> float:
        """0 without evidence."""
        return self._tokens / self._busy_s if self._busy_s else 0.0
