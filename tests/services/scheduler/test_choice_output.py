"""Text, ids and log-probabilities end together (pitfall D3)."""

import random

import pytest

from common.request import GeneratedToken
from services.scheduler.choice_output import ChoiceOutput

BYTES = {
    1: b"hello",
    2: b" ST",
    3: b"OP",
    4: b" now",
    5: b"S",
    6: b"T",
    7: b"O",
    8: b"P",
    9: b"abST",
    10: "한".encode()[:2],
    11: "한".encode()[2:],
    12: b"",
    13: b"OPxyz",
}


def play(ids, stops=("STOP",), min_tokens=0, finish=True):
    """(pieces, delivered ids, text, stop)"""
    output = ChoiceOutput(BYTES.__getitem__, stops, min_tokens)
    pieces = []
    for position, token_id in enumerate(ids):
        pieces.append(output.feed(GeneratedToken(position, token_id)))
        if pieces[-1].stop:
            break
    else:
        if finish:
            pieces.append(output.end())
    tokens = [token.token_id for piece in pieces for token in piece.tokens]
    assert [t.position for p in pieces for t in p.tokens] == list(range(len(tokens)))
    return pieces, tokens, "".join(piece.text for piece in pieces), pieces[-1].stop


@pytest.mark.parametrize(
    ("ids", "kept", "text"),
    [
        ([1, 2, 3, 4], [1, 2], "hello "),  # the space before belongs to the token that begins the stop
        ([1, 5, 6, 7, 8, 4], [1], "hello"),  # over four tokens
        ([9, 3], [9], "ab"),  # begins inside a token
        ([1, 2, 13], [1, 2], "hello "),  # ends inside a token
        ([5, 6, 7, 8], [], ""),
    ],
)
def test_a_stop_string_over_tokens(ids, kept, text):
    pieces, tokens, got, stop = play(ids)
    assert (tokens, got, stop) == (kept, text, "STOP")
    assert not any("ST" in piece.text for piece in pieces)


@pytest.mark.parametrize(("ids", "text"), [([1, 2, 4], "hello ST now"), ([5, 6, 7], "STO"), ([9, 5, 6], "abSTST")])
def test_a_beginning_that_came_to_nothing_is_delivered(ids, text):
    _, tokens, got, stop = play(ids)
    assert (tokens, got, stop) == (ids, text, "")


def test_tokens_leave_with_their_first_character():
    output = ChoiceOutput(BYTES.__getitem__, ("STOP",))
    piece = output.feed(GeneratedToken(0, 9))
    assert (piece.text, [t.token_id for t in piece.tokens]) == ("ab", [9])
    piece = output.feed(GeneratedToken(1, 4))
    assert (piece.text, [t.token_id for t in piece.tokens]) == ("ST now", [4])


def test_half_characters_wait_as_text_and_not_as_ids():
    output = ChoiceOutput(BYTES.__getitem__)
    assert output.feed(GeneratedToken(0, 10)).tokens
    assert output.feed(GeneratedToken(1, 11)).text == "한"


def test_min_tokens_are_not_watched():
    _, tokens, text, stop = play([2, 3, 1, 2, 3], min_tokens=3)
    assert (tokens, text, stop) == ([2, 3, 1, 2], " STOPhello ", "STOP")


def test_a_stop_id_is_an_id_and_no_text():
    output = ChoiceOutput(BYTES.__getitem__, ("STOP",))
    first = output.feed(GeneratedToken(0, 2))
    last = output.feed(GeneratedToken(1, 3), ends_by_id=True)
    end = output.end()
    assert first.text + last.text + end.text == " ST"
    assert [t.token_id for p in (first, last, end) for t in p.tokens] == [2, 3]


def test_without_a_tokenizer_ids_leave_at_once():
    output = ChoiceOutput(None)
    assert output.feed(GeneratedToken(0, 99)).tokens[0].token_id == 99


def test_random_streams_keep_what_begins_before_the_cut():
    rng = random.Random(5)
    for _ in range(500):
        ids = [rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13]) for _ in range(12)]
        _, tokens, text, stop = play(ids)
        whole = b"".join(BYTES[i] for i in ids).decode()
        if "STOP" not in whole:
            assert (tokens, text, stop) == (ids, whole, "")
            continue
        cut = whole.index("STOP")
        starts = [sum(len(BYTES[i]) for i in ids[:k]) for k in range(len(ids))]
        assert text == whole[:cut]
        assert tokens == [i for i, start in zip(ids, starts, strict=True) if start < cut]
