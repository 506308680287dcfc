"""Every limit of the front door, with field, value and limit in the refusal (pitfalls A1, A3, A4, A5)."""

import math
from dataclasses import replace

import pytest

from common.errors import CheckpointError, InvalidInput, UnknownModel
from common.request import Limits, Sampling
from common.rpc.inference_data import ChatMessage, GenerateRequest, SamplingOptions, Stopping
from services.scheduler.front_door import validate
from services.scheduler.model_card import ModelCard, read_model_card
from services.scheduler.tokenizer import Tokenizer
from tests.fakes.tokenizer import CONFIG, TEMPLATE, tokenizer_document

TOKENIZER = Tokenizer(tokenizer_document(), CONFIG, TEMPLATE)
CARD = ModelCard("m", 512, 100, frozenset({1}), Sampling(temperature=0.6, top_p=0.95))
GOOD = GenerateRequest(token_ids=(5, 6))


def check(request, card=CARD, tokenizer=TOKENIZER):
    return validate(request, card, tokenizer, fresh_id="fresh", fresh_seed=77)


def sampling(**options):
    return replace(GOOD, sampling=SamplingOptions(**options))


def stopping(**options):
    return replace(GOOD, stopping=Stopping(**options))


BAD = [
    (replace(GOOD, token_ids=(-1,)), "prompt.token_ids[0]", "0 to 511"),
    (replace(GOOD, token_ids=(5, 512)), "prompt.token_ids[1]", "0 to 511"),
    (replace(GOOD, token_ids=(5, 511)), "prompt.token_ids[1]", "no token has this id"),
    (replace(GOOD, token_ids=()), "prompt.token_ids", "at least one"),
    (GenerateRequest(), "prompt", "exactly one"),
    (GenerateRequest(text="a", token_ids=(5,)), "prompt", "exactly one"),
    (GenerateRequest(text=""), "prompt.text", "at least one character"),
    (GenerateRequest(text="a\ud800"), "prompt.text", "surrogate"),
    (GenerateRequest(chat=(ChatMessage("user", "\udc00"),)), "prompt.chat.messages[0].content", "surrogate"),
    (GenerateRequest(chat=()), "prompt.chat.messages", "at least one message"),
    (GenerateRequest(chat=(ChatMessage("robot", "x"),)), "prompt.chat.messages[0].role", "one of system"),
    (replace(GOOD, n=0), "n", "1 to 16"),
    (replace(GOOD, n=17), "n", "1 to 16"),
    (replace(GOOD, priority=11), "priority", "-10 to 10"),
    (replace(GOOD, logprobs=21), "logprobs", "0 to 20"),
    (replace(GOOD, logprobs=-1), "logprobs", "0 to 20"),
    (replace(GOOD, deadline_ms=0), "deadline_ms", "1 to"),
    (replace(GOOD, deadline_ms=-5), "deadline_ms", "1 to"),
    (replace(GOOD, request_id="x" * 129), "request_id", "at most 128"),
    (replace(GOOD, tenant="a\nb"), "tenant", "printable"),
    (sampling(temperature=2.1), "sampling.temperature", "[0, 2]"),
    (sampling(temperature=-0.1), "sampling.temperature", "[0, 2]"),
    (sampling(temperature=math.nan), "sampling.temperature", "[0, 2]"),
    (sampling(temperature=math.inf), "sampling.temperature", "[0, 2]"),
    (sampling(top_p=0.0), "sampling.top_p", "(0, 1]"),
    (sampling(top_p=1.01), "sampling.top_p", "(0, 1]"),
    (sampling(min_p=1.5), "sampling.min_p", "[0, 1]"),
    (sampling(top_k=-1), "sampling.top_k", "0 to"),
    (sampling(presence_penalty=2.5), "sampling.presence_penalty", "[-2, 2]"),
    (sampling(frequency_penalty=-2.5), "sampling.frequency_penalty", "[-2, 2]"),
    (sampling(repetition_penalty=0.0), "sampling.repetition_penalty", "(0, 2]"),
    (sampling(logit_bias={191222: 1.0}), "sampling.logit_bias", "0 to 511"),
    (sampling(logit_bias={511: 1.0}), "sampling.logit_bias", "no token"),
    (sampling(logit_bias={5: 100.5}), "sampling.logit_bias[5]", "[-100, 100]"),
    (sampling(logit_bias={5: math.nan}), "sampling.logit_bias[5]", "[-100, 100]"),
    (sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "sampling.logit_bias", "at most 1024"),
    (sampling(seed=2**63 - 1), "sampling.seed", "9223372036854775792"),
    (stopping(max_tokens=0), "stopping.max_tokens", "at least 1"),
    (stopping(max_tokens=-7584), "stopping.max_tokens", "at least 1"),
    (stopping(min_tokens=-1), "stopping.min_tokens", "at least 0"),
    (stopping(max_tokens=3, min_tokens=4), "stopping.min_tokens", "max_tokens = 3"),
    (stopping(stop=("",)), "stopping.stop[0]", "1 to 256"),
    (stopping(stop=("\ud800",)), "stopping.stop[0]", "surrogate"),
    (stopping(stop=("x" * 257,)), "stopping.stop[0]", "1 to 256"),
    (stopping(stop=("x",) * 17), "stopping.stop", "at most 16"),
    (stopping(stop_token_ids=(512,)), "stopping.stop_token_ids[0]", "0 to 511"),
    (stopping(stop_token_ids=(5,) * 65), "stopping.stop_token_ids", "at most 64"),
]


@pytest.mark.parametrize(("request_", "field", "limit"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_refusals(request_, field, limit):
    with pytest.raises(InvalidInput) as caught:
        check(request_)
    assert caught.value.field == field
    assert limit in caught.value.limit


@pytest.mark.parametrize("kind", ["ids", "text"])
def test_around_the_context_limit(kind):
    def prompt(tokens):
        if kind == "ids":
            return GenerateRequest(token_ids=(5,) * tokens)
        return GenerateRequest(text="x " * ((tokens - 1) // 2) + "x" * ((tokens - 1) % 2))  # and BOS

    assert len(check(prompt(99)).token_ids) == 99
    assert check(prompt(99)).limits.max_tokens == 1
    for tokens in (100, 101, 191_378):
        with pytest.raises(InvalidInput, match="100") as caught:
            check(prompt(tokens))
        assert caught.value.field.startswith("prompt")
        assert "100" in caught.value.limit


def test_absurd_text_is_refused_without_encoding_it():
    with pytest.raises(InvalidInput, match="characters"):
        check(GenerateRequest(text="x" * 10_000_000))


def test_only_spaces_are_a_prompt():
    assert check(GenerateRequest(text="   ")).token_ids


def test_defaults_are_the_models_and_the_rest_is_fresh():
    valid = check(GOOD)
    assert valid.sampling == Sampling(temperature=0.6, top_p=0.95, seed=77)
    assert valid.request_id == "fresh"
    assert valid.limits == Limits(98, 0, frozenset({1}))
    assert (valid.n, valid.logprobs, valid.deadline_ms) == (1, None, None)


def test_what_is_given_is_kept():
    request = replace(
        GOOD,
        request_id="r",
        model="m",
        n=3,
        sampling=SamplingOptions(temperature=0.0, top_k=4, seed=0, logit_bias={5: -100.0}),
        stopping=Stopping(200, 150, ("a",), (7,), True),
    )
    valid = check(request)
    assert valid.sampling == Sampling(temperature=0.0, top_p=0.95, top_k=4, seed=0, logit_bias={5: -100.0})
    assert valid.limits == Limits(98, 98, frozenset({7}))  # both cut to what the context leaves
    assert (valid.request_id, valid.n, valid.stop) == ("r", 3, ("a",))


def test_another_model_is_unknown():
    with pytest.raises(UnknownModel, match="served here: m"):
        check(replace(GOOD, model="gpt"))


def test_without_a_tokenizer_text_is_refused_and_ids_are_not():
    assert check(replace(GOOD, token_ids=(511,)), tokenizer=None).token_ids == (511,)
    for request, field in (
        (GenerateRequest(text="x"), "prompt.text"),
        (GenerateRequest(chat=(ChatMessage("user", "x"),)), "prompt.chat"),
        (stopping(stop=("x",)), "stopping.stop"),
    ):
        with pytest.raises(InvalidInput, match="no tokenizer") as caught:
            check(request, tokenizer=None)
        assert caught.value.field == field


def test_the_card_is_read_from_the_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 512, "eos_token_id": 3}')
    assert read_model_card(tmp_path, "m", 64) == ModelCard("m", 512, 64, frozenset({3}), Sampling())
    (tmp_path / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 2]}'
    )
    card = read_model_card(tmp_path, "m", 64)
    assert card == ModelCard("m", 512, 64, frozenset({1, 2}), Sampling(temperature=0.6, top_p=0.95))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": null}')
    assert read_model_card(tmp_path, "m", 64).eos_token_ids == {3}


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", "{", "not JSON"),
        ("config.json", '{"vocab_size": "many"}', "vocab_size = 'many': must be a whole number"),
        ("config.json", '{"vocab_size": 9, "eos_token_id": "end"}', "eos_token_id = 'end': must be a token id"),
        ("generation_config.json", "[]", "holds list, not an object"),
        ("generation_config.json", '{"eos_token_id": [1, true]}', r"eos_token_id = \[1, True\]: must be a token id"),
        (
            "generation_config.json",
            '{"do_sample": true, "temperature": "hot"}',
            r"temperature = 'hot': must be ",
        ),
        ("generation_config.json", '{"do_sample": true, "top_p": 0}', r"top_p = 0: must be \(0, 1\]"),
        ("generation_config.json", '{"do_sample": true, "top_k": 0.5}', "top_k = 0.5: must be 0 to"),
    ],
)
def test_a_malformed_card_is_refused_by_file_and_reason(tmp_path, file, content, reason):
    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=f"{tmp_path / file}: {reason}"):
        read_model_card(tmp_path, "m", 64)
