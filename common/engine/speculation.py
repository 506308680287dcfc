"""The accept rule. A draft stands when it equals the target's own draw at its position.

A draw's noise depends on (seed, position) alone, so accepting changes when a token is known and never which one.
"""

from collections.abc import Sequence


def accepted_drafts(drafts: Sequence[int], draws: Sequence[int]) -> int:
    """How many leading drafts stand.

    Args:
        drafts: proposed for the k positions after the last token.
        draws: the target's k + 1 draws, of which ``draws[: accepted + 1]`` are the tokens gained.
    """
    if len(draws) != len(drafts) + 1:
        raise ValueError(f"{len(draws)} draws for {len(drafts)} drafts: one more is needed")
    for count, (draft, drawn) in enumerate(zip(drafts, draws, strict=False)):
        if draft != drawn:
            return count
    return len(drafts)


def slots_written(last_position: int, drafts: int, draft_passes: int) -> int:
    """Cache slots that a decode step may write, counted from position 0.

    The verifying pass writes positions up to ``last_position + drafts``. If all are accepted the new last token is one
    further, and every draft pass after the first writes one more slot of the MTP layer from there on.
    """
    verified = last_position + 1 + drafts
    return verified + max(0, draft_passes - 1)
