"""Multi-token prediction: what a draft of some length is worth."""

from common.errors import InvalidInput


def tokens_per_step(acceptance: float, draft_tokens: int) -> float:
    """Mean tokens a request gains in one step: 1 + a + a^2 + ... + a^d; 1.6 for one draft at 60 %.

    A draft counts only if all before it were accepted; `acceptance` is the chance that the next one is, given that.
    """
    if not 0 <= acceptance <= 1:
        raise InvalidInput("acceptance", acceptance, "between 0 and 1")
    if draft_tokens < 0:
        raise InvalidInput("draft_tokens", draft_tokens, "at least 0")
    return float(sum(acceptance**i for i in range(draft_tokens + 1)))
