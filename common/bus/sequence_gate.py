"""Order from a bus that promises none: of each sender only news passes, and what was missed is counted."""

from collections.abc import Callable


class SequenceGate:
    """Admits a message when its (incarnation, sequence) is above everything its sender was heard to say.

    Args:
        missed: told how many sequence numbers were passed over; those that come late are not taken off again.
        refused: told of each repeated or late message, and of those of earlier incarnations.
    """

    def __init__(self, missed: Callable[[int], None], refused: Callable[[], None]) -> None:
        self._latest: dict[str, tuple[int, int]] = {}
        self._missed, self._refused = missed, refused

    def admit(self, sender: str, incarnation: int, sequence: int) -> bool:
        """Sequences count from 1 in each incarnation; the first one heard of an incarnation may be any."""
        latest = self._latest.get(sender)
        if latest is not None and (incarnation, sequence) <= latest:
            self._refused()
            return False
        if latest is not None and latest[0] == incarnation:
            self._missed(sequence - latest[1] - 1)
        self._latest[sender] = (incarnation, sequence)
        return True
