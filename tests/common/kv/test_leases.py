import pytest

from common.clock import ManualClock
from common.errors import InternalError
from common.kv.leases import LeaseTable


def test_lease_ends_once_by_release_or_by_expiry():
    clock = ManualClock(100.0)
    leases = LeaseTable(clock)
    leases.grant("a", [1, 2], expires_s=110.0)
    leases.grant("b", [2, 3], expires_s=105.0)
    assert len(leases) == 2
    assert leases.release("a") == [1, 2]
    assert leases.release("a") == []
    clock.advance(4.9)
    assert leases.expire() == []
    clock.advance(0.1)
    assert [(lease.work_id, lease.blocks) for lease in leases.expire()] == [("b", (2, 3))]
    assert leases.expire() == []
    assert leases.release("b") == []
    assert len(leases) == 0


def test_renewal_moves_expiry_later_and_never_revives():
    clock = ManualClock()
    leases = LeaseTable(clock)
    leases.grant("a", [1], expires_s=1.0)
    assert leases.renew("a", 3.0)
    assert leases.renew("a", 2.0)
    clock.advance(2.9)
    assert leases.expire() == []
    clock.advance(0.1)
    assert not leases.renew("a", 9.0)
    assert len(leases.expire()) == 1
    assert not leases.renew("a", 9.0)
    assert "a" not in leases


def test_second_live_grant_is_refused():
    leases = LeaseTable(ManualClock())
    leases.grant("a", [1], expires_s=1.0)
    with pytest.raises(InternalError, match="a already holds"):
        leases.grant("a", [2], expires_s=1.0)
    assert leases.release("a") == [1]
