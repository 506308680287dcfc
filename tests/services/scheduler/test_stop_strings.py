"""The first complete stop string wins, however the text was cut; nothing of it leaves early."""

import random

from services.scheduler.stop_strings import StopMatch, StopStrings


def first_complete(text, stops):
    """By definition: smallest end, then the longest."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return None
    end, _, stop = min(found)
    return StopMatch(stop, end - len(stop))


def test_against_the_definition_over_all_cuts():
    rng = random.Random(3)
    for _ in range(2000):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(1, 14)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        watcher, match, position = StopStrings(stops), None, 0
        while position < len(text) and match is None:
            step = rng.randrange(1, 4)
            match = watcher.feed(text[position : position + step])
            position += step
        assert match == first_complete(text, stops)


def test_what_is_held_is_the_longest_possible_beginning():
    rng = random.Random(4)
    for _ in range(2000):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(0, 14)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))]
        watcher = StopStrings(stops)
        if watcher.feed(text) is None:
            longest = max(k for stop in stops for k in range(len(stop)) if text.endswith(stop[:k]))
            assert watcher.held == longest


def test_without_stops_nothing_is_held():
    watcher = StopStrings(())
    assert watcher.feed("abc") is None
    assert watcher.held == 0
