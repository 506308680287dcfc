"""The parts sum to the wall time, by construction."""

import random

import pytest

from common.clock import ManualClock
from services.scheduler.ledger import LedgerClock, Part


def test_parts_and_moves():
    clock = ManualClock(10.0)
    ledger = LedgerClock(clock, 9.0)
    ledger.enter(Part.PREFILL)
    clock.advance(2.0)
    ledger.enter(Part.DECODE_QUEUE)
    clock.advance(3.0)
    ledger.enter(Part.STEPS)
    assert ledger.move(Part.DECODE_QUEUE, Part.EXPOSED_TRANSFER, 1.0) == 1.0
    assert ledger.move(Part.DECODE_QUEUE, Part.EXPOSED_TRANSFER, 100.0) == 2.0
    assert ledger.move(Part.DECODE_QUEUE, Part.EXPOSED_TRANSFER, -1.0) == 0.0
    clock.advance(4.0)
    closed = ledger.close()
    assert dict(closed.entries) == {"queue": 1.0, "prefill": 2.0, "exposed_transfer": 3.0, "steps": 4.0}
    assert closed.total_s == 10.0


def test_whatever_happens_they_sum():
    rng, clock = random.Random(1), ManualClock()
    for _ in range(50):
        ledger = LedgerClock(clock, clock.now_s())
        for _ in range(40):
            clock.advance(rng.random())
            if rng.random() < 0.5:
                ledger.enter(rng.choice(list(Part)))
            else:
                ledger.move(rng.choice(list(Part)), rng.choice(list(Part)), rng.uniform(-1, 3))
        closed = ledger.close()
        assert sum(seconds for _, seconds in closed.entries) == pytest.approx(closed.total_s)
        assert all(seconds >= 0 for _, seconds in closed.entries)
