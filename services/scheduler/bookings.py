"""What this replica placed and load reports cannot tell yet.

A report is as old as its journey; work placed since then is added, work that left since then is taken away. With no
recent report (bus gone) the replica's own work is all there is.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Booking:
    instance: str
    tokens: int
    booked_s: float


@dataclass(slots=True)
class InstanceBookings:
    """Open and recently closed work of one instance."""

    open: dict[str, Booking] = field(default_factory=dict)  # by work id
    closed: list[tuple[float, Booking]] = field(default_factory=list)  # (when, what), since the last report
    placed_tokens: float = 0.0  # ever

    def book(self, work_id: str, booking: Booking) -> None:
        self.open[work_id] = booking
        self.placed_tokens += booking.tokens

    def close(self, work_id: str, now_s: float) -> None:
        booking = self.open.pop(work_id, None)
        if booking is not None:
            self.closed.append((now_s, booking))

    def forget_before(self, report_s: float) -> None:
        """A report of `report_s` knows what closed before it."""
        self.closed = [one for one in self.closed if one[0] > report_s]

    def effective(self, reported_tokens: float, reported_count: int, report_s: float | None) -> tuple[float, int]:
        """(tokens, pieces of work) that the instance has, by report and own knowledge.

        Args:
            report_s: when the report was made, on our clock; None when there is no recent one.
        """
        if report_s is None:
            return float(sum(booking.tokens for booking in self.open.values())), len(self.open)
        new = [booking for booking in self.open.values() if booking.booked_s > report_s]
        gone = [booking for _, booking in self.closed if booking.booked_s <= report_s]
        tokens = reported_tokens + sum(b.tokens for b in new) - sum(b.tokens for b in gone)
        return max(0.0, tokens), max(0, reported_count + len(new) - len(gone))
