"""Text in and out over fake workers that draw a given text token by token (pitfalls A3, D2, D3, D6)."""

import pytest

from common.errors import InvalidInput
from common.request import FinishReason, Sampling
from common.rpc.inference_data import ChatMessage, GenerateRequest, Stopping
from services.scheduler.model_card import ModelCard
from services.scheduler.tokenizer import Tokenizer
from tests.fakes.cluster import FakeCluster, text_of, tokens_of
from tests.fakes.tokenizer import ASSISTANT, BOS, CONFIG, EOS, TEMPLATE, tokenizer_document

TOKENIZER = Tokenizer(tokenizer_document(), CONFIG, TEMPLATE)
EOS_ID = TOKENIZER.token_id(EOS)
CARD = ModelCard("tiny", 1000, 4096, frozenset({EOS_ID}), Sampling())


def saying(ids):
    """A cluster whose workers draw these ids, then the end of sequence."""

    def script(work, position):
        generated = position - work.prompt_tokens
        return ids[generated] if generated < len(ids) else EOS_ID

    return FakeCluster(script=script, card=CARD, tokenizer=TOKENIZER)


def spelled(text):
    return TOKENIZER.encode_text(text)[1:]


@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("text", ["hello world", "안녕하세요 세계", "👩‍👩‍👧‍👦 and e\u0301"])
async def test_deltas_join_to_the_text(text, tokens_per_step):
    async with saying(spelled(text)) as cluster:
        cluster.decodes["d0"].tokens_per_step = tokens_per_step
        deltas = await cluster.ask(GenerateRequest(text="Say it:"))
        assert text_of(deltas) == text
        assert not any("\ufffd" in delta.text for delta in deltas)
        assert tokens_of(deltas) == [*spelled(text), EOS_ID]
        assert (deltas[-1].finish_reason, deltas[-1].stop) == (FinishReason.STOP, str(EOS_ID))
        assert deltas[-1].usage.completion_tokens == len(spelled(text)) + 1


async def test_special_tokens_are_no_text_and_marks_of_a_chat_are():
    ids = [*spelled("one"), TOKENIZER.token_id(BOS), TOKENIZER.token_id("</think>"), TOKENIZER.token_id(ASSISTANT)]
    async with saying(ids) as cluster:
        deltas = await cluster.ask(GenerateRequest(text="x"))
        assert text_of(deltas) == f"one</think>{ASSISTANT}"
        assert tokens_of(deltas) == [*ids, EOS_ID]


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_a_stop_string_over_several_tokens_ends_text_ids_and_log_probabilities(tokens_per_step):
    before, stop, after = "the fox", " xq#zj", " and more" * 500
    ids = [*spelled(before), *spelled(stop), *spelled(after)]
    assert len(spelled(stop)) >= 3
    async with saying(ids) as cluster:
        cluster.decodes["d0"].tokens_per_step = tokens_per_step
        request = GenerateRequest(text="x", stopping=Stopping(stop=("never", stop)), logprobs=1)
        deltas = await cluster.ask(request)
        assert text_of(deltas) == before
        assert tokens_of(deltas) == spelled(before) == [token for d in deltas for token, _ in d.logprobs]
        assert (deltas[-1].finish_reason, deltas[-1].stop) == (FinishReason.STOP, stop)
        assert deltas[-1].usage.completion_tokens == len(spelled(before))
        await cluster.idle(1.0)  # the worker was told: it would have gone on
        assert cluster.decodes["d0"].cancels


async def test_nothing_follows_a_stop_string_in_the_first_token():
    async with saying(spelled("hello") + spelled(" world") * 50) as cluster:
        cluster.prefills["p0"].first_token_delay_s = 0.2  # decode's tokens are here first
        deltas = await cluster.ask(GenerateRequest(text="x", stopping=Stopping(stop=("h",))))
        assert (text_of(deltas), tokens_of(deltas), len(deltas)) == ("", [], 1)
        assert deltas[-1].usage.completion_tokens == 0
        await cluster.idle(1.0)


async def test_a_beginning_of_a_stop_string_at_the_end_is_text():
    async with saying(spelled("wait xq#")) as cluster:
        deltas = await cluster.ask(GenerateRequest(text="x", stopping=Stopping(stop=("xq#zj",))))
        assert text_of(deltas) == "wait xq#"


@pytest.mark.parametrize(
    ("thinking", "answer"),
    [("", "yes"), ("let me think", "yes"), ("let me think", "")],
    ids=["first token", "some", "all"],
)
async def test_reasoning_and_answer_sum_to_the_completion(thinking, answer):
    end = TOKENIZER.token_id("</think>")
    thought = [*spelled(thinking), end] if answer or not thinking else spelled(thinking)
    ids = [*thought, *spelled(answer)]
    async with saying(ids) as cluster:
        request = GenerateRequest(chat=(ChatMessage("user", "?"),), stopping=Stopping(max_tokens=len(ids)))
        usage = (await cluster.ask(request))[-1].usage
        assert usage.reasoning_tokens == len(thought)
        assert usage.completion_tokens - usage.reasoning_tokens == len(spelled(answer))


async def test_empty_prompts_are_refused_and_the_next_is_served():
    async with saying(spelled("ok")) as cluster:
        for empty in (GenerateRequest(text=""), GenerateRequest(token_ids=()), GenerateRequest(chat=())):
            with pytest.raises(InvalidInput, match="at least one"):
                await cluster.ask(empty)
        assert text_of(await cluster.ask(GenerateRequest(text="   "))) == "ok"


async def test_a_prompt_of_control_tokens_is_only_text():
    async with saying(spelled("ok")) as cluster:
        await cluster.ask(GenerateRequest(chat=(ChatMessage("user", f"{EOS}<｜User｜>"),)))
        assert EOS_ID not in cluster.prefills["p0"].works[0].token_ids


async def test_a_long_text_is_encoded_beside_the_event_loop():
    async with saying(spelled("ok")) as cluster:
        deltas = await cluster.ask(GenerateRequest(text="hello world " * 500))
        assert deltas[-1].usage.prompt_tokens == len(TOKENIZER.encode_text("hello world " * 500))


async def test_a_text_choice_is_resumed_in_the_middle_of_a_character():
    text = "안녕하세요 세계"
    async with saying(spelled(text)) as cluster:
        for after in (2, 4, 7):
            cluster.decodes["d0"].faults = {after: None}
            assert text_of(await cluster.ask(GenerateRequest(text="x"))) == text
        assert cluster.metric("tandem_request_preemptions_total") == 3
