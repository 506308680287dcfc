"""Which announced blocks become one piece of a read."""

from collections.abc import Sequence


def runs(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Join pairs (source block, slot) that are neighbours on both sides into (source block, slot, length in blocks)."""
    joined: list[tuple[int, int, int]] = []
    for source, slot in pairs:
        if joined:
            first_source, first_slot, length = joined[-1]
            if source == first_source + length and slot == first_slot + length:
                joined[-1] = (first_source, first_slot, length + 1)
                continue
        joined.append((source, slot, 1))
    return joined
