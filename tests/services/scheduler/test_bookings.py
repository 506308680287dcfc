"""Reports and own knowledge together, without counting anything twice."""

from services.scheduler.bookings import Booking, InstanceBookings


def test_before_any_report_own_work_is_all():
    bookings = InstanceBookings()
    bookings.book("w", Booking("a", 100, 1.0))
    assert bookings.effective(0, 0, None) == (100.0, 1)


def test_work_after_the_report_is_added_and_work_that_left_is_taken_away():
    bookings = InstanceBookings()
    bookings.book("old", Booking("a", 100, 1.0))
    bookings.book("gone", Booking("a", 30, 1.5))
    bookings.book("new", Booking("a", 50, 3.0))
    bookings.close("gone", 4.0)
    assert bookings.effective(1000, 10, 2.0) == (1000 + 50 - 30, 10)


def test_what_came_and_went_since_the_report_counts_nothing():
    bookings = InstanceBookings()
    bookings.book("brief", Booking("a", 50, 3.0))
    bookings.close("brief", 4.0)
    assert bookings.effective(10, 1, 2.0) == (10.0, 1)


def test_a_newer_report_forgets_what_it_knows():
    bookings = InstanceBookings()
    bookings.book("w", Booking("a", 50, 1.0))
    bookings.close("w", 2.0)
    bookings.forget_before(3.0)
    assert bookings.closed == []
    assert bookings.placed_tokens == 50
    assert bookings.effective(0, 0, 3.0) == (0.0, 0)


def test_never_below_nothing():
    bookings = InstanceBookings()
    bookings.book("w", Booking("a", 50, 1.0))
    bookings.close("w", 3.0)
    assert bookings.effective(20, 0, 2.0) == (0.0, 0)
