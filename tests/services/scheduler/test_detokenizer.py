"""Deltas joined are the one-shot decode, and no half character leaks (pitfall D6)."""

import json
import random

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer

from services.scheduler.detokenizer import Detokenizer
from services.scheduler.tokenizer import Tokenizer
from tests.fakes.tokenizer import CONFIG, EOS, tokenizer_document

DOCUMENT = tokenizer_document()
TOKENIZER = Tokenizer(DOCUMENT, CONFIG, None)
REFERENCE = HuggingFaceTokenizer.from_str(json.dumps(DOCUMENT))


def deltas(ids):
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    return [*map(detokenizer.feed, ids), detokenizer.end()]


@pytest.mark.parametrize(
    "text",
    ["안녕하세요 세계", "👩‍👩‍👧‍👦 family", "e\u0301 a\u0308\u0323 combining", "日本語テキスト", "plain ascii", "🏳️‍🌈🇰🇷"],
)
def test_characters_spread_over_tokens(text):
    ids = TOKENIZER.encode_text(text)[1:]
    assert len(ids) > 3
    parts = deltas(ids)
    assert "".join(parts) == text == REFERENCE.decode(ids)
    assert not any("\ufffd" in part for part in parts)


def test_single_bytes_too():
    text = "ü한👩"
    ids = [TOKENIZER.token_id(character) for byte in text.encode() for character in alphabet(byte)]
    assert "".join(deltas(ids)) == text


def alphabet(byte):
    return next(
        c
        for c in DOCUMENT["model"]["vocab"]
        if len(c) == 1 and TOKENIZER.token_bytes(TOKENIZER.token_id(c)) == bytes([byte])
    )


def test_random_tokens_decode_as_at_once():
    rng = random.Random(7)
    size = len(DOCUMENT["model"]["vocab"]) + 4
    for _ in range(300):
        ids = [rng.randrange(size) for _ in range(rng.randrange(1, 40))]
        assert "".join(deltas(ids)) == REFERENCE.decode(ids, skip_special_tokens=True)


def test_special_tokens_are_no_text():
    assert deltas([TOKENIZER.token_id(EOS)]) == ["", ""]
