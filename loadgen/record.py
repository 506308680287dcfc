"""What one request did, as its sender saw it. Times are monotonic seconds after the run's start."""

from dataclasses import dataclass

OK = ""
COUNT_MISMATCH = "TOKEN_COUNT_MISMATCH"  # the tokens that arrived are not those the server's usage counts
SHORT = "WRONG_LENGTH"  # the stream ended well, with another number of tokens than were asked for
NO_USAGE = "NO_USAGE"  # the stream ended without the usage that its last message must carry
CLIENT_TIMEOUT = "CLIENT_TIMEOUT"


@dataclass(frozen=True, slots=True)
class Record:
    """`error` is empty or the reason's identifier; counts are the server's usage.

    Of the messages that carried tokens, `arrivals_s` are the times and `arrival_tokens` how many each brought.
    """

    index: int
    scheduled_s: float
    sent_s: float
    ended_s: float
    arrivals_s: tuple[float, ...] = ()
    arrival_tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    request_id: str = ""
    error: str = OK
    message: str = ""

    @property
    def lag_s(self) -> float:
        """How late it was sent."""
        return self.sent_s - self.scheduled_s
