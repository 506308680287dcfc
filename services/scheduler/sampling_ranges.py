"""Which values sampling may have, whoever asks for them: a client, or a checkpoint's defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float
    low_allowed: bool = True

    def holds(self, value: float) -> bool:
        above = self.low <= value if self.low_allowed else self.low < value
        return math.isfinite(value) and above and value <= self.high

    def __str__(self) -> str:
        return f"{'[' if self.low_allowed else '('}{self.low:g}, {self.high:g}]"


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "temperature": Range(0.0, 2.0),
        "top_p": Range(0.0, 1.0, low_allowed=False),
        "min_p": Range(0.0, 1.0),
        "presence_penalty": Range(-2.0, 2.0),
        "frequency_penalty": Range(-2.0, 2.0),
        "repetition_penalty": Range(0.0, 2.0, low_allowed=False),
    }
)
