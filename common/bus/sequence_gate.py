"""Order from a bus that promises none: of each sender only news passes, and what was missed is counted."""


class SequenceGate:
    """Admits a message when its (incarnation, sequence) is above everything its sender was heard to say.

    Attributes:
        missed: sequence numbers that were passed over; those that come late are not taken off again.
        refused: repeated and late messages, and those of earlier incarnations.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}
        self.missed = 0
        self.refused = 0

    def admit(self, sender: str, incarnation: int, sequence: int) -> bool:
        """Sequences count from 1 in each incarnation; the first one heard of an incarnation may be any."""
        latest = self._latest.get(sender)
        if latest is not None and (incarnation, sequence) <= latest:
            self.refused += 1
            return False
        if latest is not None and latest[0] == incarnation:
            self.missed += sequence - latest[1] - 1
        self._latest[sender] = (incarnation, sequence)
        return True
