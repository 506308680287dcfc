"""Where a request's wall time goes. The parts sum to the total because time only ever moves between them."""

from enum import StrEnum

from common.clock import Clock
from common.rpc.inference_data import Ledger


class Part(StrEnum):
    QUEUE = "queue"  # in the scheduler: validation, admission, waiting for its turn
    LOOKUP = "lookup"  # the prefix index
    PREFILL_QUEUE = "prefill_queue"  # from dispatch to the start of prefill
    PREFILL = "prefill"  # to the first token
    EXPOSED_TRANSFER = "exposed_transfer"  # latent that was still on its way when decode could have gone on
    DECODE_QUEUE = "decode_queue"
    STEPS = "steps"
    DETOKENIZE = "detokenize"
    RESUME = "resume"  # from a lost or preempted attempt to the next token
    OTHER = "other"


class LedgerClock:
    """Charges every moment since `start_s` to exactly one part."""

    def __init__(self, clock: Clock, start_s: float) -> None:
        self._clock = clock
        self._start_s = self._mark_s = start_s
        self._seconds = dict.fromkeys(Part, 0.0)
        self._part = Part.QUEUE

    @property
    def part(self) -> Part:
        return self._part

    def enter(self, part: Part) -> None:
        """Time from now on belongs to `part`."""
        now_s = self._clock.now_s()
        self._seconds[self._part] += now_s - self._mark_s
        self._mark_s, self._part = now_s, part

    def move(self, source: Part, target: Part, seconds: float) -> float:
        """Recharge up to `seconds` of what `source` has, and give how much that was.

        Workers measure on their own clocks, so what they report is taken only as far as our own time goes.
        """
        moved = min(max(seconds, 0.0), self._seconds[source])
        self._seconds[source] -= moved
        self._seconds[target] += moved
        return moved

    def close(self) -> Ledger:
        self.enter(self._part)
        entries = tuple((part.value, seconds) for part, seconds in self._seconds.items() if seconds > 0)
        return Ledger(entries, self._mark_s - self._start_s)
