"""The pace at which turns come: by the time in which somebody waited."""

from math import inf

import pytest

from common.clock import ManualClock
from services.scheduler.turn_pace import TurnPace


def seen(clock, turns, every_s, tokens=100):
    pace = TurnPace(clock)
    pace.waits()
    for _ in range(turns):
        clock.advance(every_s)
        pace.granted(tokens)
    return pace


def test_the_pace_is_tokens_by_time():
    assert seen(ManualClock(), 100, 0.5).tokens_per_s == pytest.approx(200.0, rel=0.05)


def test_nothing_is_known_without_evidence():
    clock = ManualClock()
    assert TurnPace(clock).tokens_per_s == inf
    assert seen(clock, 3, 0.1).tokens_per_s == inf


def test_it_falls_while_no_turn_comes_and_not_while_nobody_waits():
    clock = ManualClock()
    pace = seen(clock, 20, 0.5)
    before = pace.tokens_per_s
    pace.nobody_waits()
    clock.advance(3.0)
    assert pace.tokens_per_s == before
    pace.waits()
    assert pace.tokens_per_s == pytest.approx(before)
    clock.advance(10.0)
    assert pace.tokens_per_s < 0.5 * before


def test_what_was_seen_long_ago_says_nothing():
    clock = ManualClock()
    pace = seen(clock, 20, 0.5)
    pace.nobody_waits()
    clock.advance(60.0)
    pace.waits()
    clock.advance(5.0)
    assert pace.tokens_per_s == inf


def test_a_new_speed_is_learned():
    clock = ManualClock()
    pace = seen(clock, 20, 1.0)
    for _ in range(60):
        clock.advance(0.5)
        pace.granted(200)
    assert pace.tokens_per_s == pytest.approx(400.0, rel=0.15)
