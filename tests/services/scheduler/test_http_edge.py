"""OpenAI's calls over real HTTP: streams, usage, errors, disconnects."""

import asyncio
import gzip
import json
import re
import zlib
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from common.rpc.channel import MAX_MESSAGE_BYTES
from services.scheduler import http_edge
from services.scheduler.http_edge import HttpEdge
from services.scheduler.openai_request import ABSENT, CHAT_ONLY, COMMON, COMPLETION_ONLY, IGNORED
from services.scheduler.settings import AdmissionPolicy
from tests.fakes.cluster import FakeCluster, until, with_settings
from tests.services.scheduler.test_text import CARD, EOS_ID, TOKENIZER, spelled

SAID = "hello world 안녕"


@asynccontextmanager
async def edge(text=SAID, **settings):
    ids = spelled(text)

    def script(work, position):
        generated = position - work.prompt_tokens
        return ids[generated] if generated < len(ids) else EOS_ID

    cluster = FakeCluster(script=script, card=CARD, tokenizer=TOKENIZER, settings=with_settings(**settings))
    async with cluster:
        refused = cluster.replica.around.metrics.refused_connections
        server = HttpEdge(cluster.replica.core, TOKENIZER.token_bytes, lambda: True, refused)
        port = await server.start("127.0.0.1", 0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield cluster, session
        await server.close()


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}


def said(**fields):
    return CHAT | {"messages": [{"role": "user", **fields}]}


async def events(response):
    assert response.headers["Content-Type"].startswith("text/event-stream")
    lines = (await response.text()).split("\n\n")
    assert lines[-1] == ""
    return [line.removeprefix("data: ") for line in lines[:-1]]


async def test_a_chat_at_once():
    async with edge() as (_, session):
        async with session.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 2}) as response:
            answer = await response.json()
        assert response.status == 200
        choice = answer["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": SAID}
        assert choice["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(spelled(SAID)) + 1 == len(choice["logprobs"]["content"])
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
        spelled_back = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
        assert spelled_back.decode() == SAID


async def test_a_chat_as_a_stream_with_usage():
    async with edge() as (_, session):
        body = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        async with session.post("/v1/chat/completions", json=body) as response:
            lines = await events(response)
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 2 * (len(spelled(SAID)) + 1)
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        for index in (0, 1):
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
            assert "".join(choice["delta"].get("content", "") for choice in mine) == SAID
            assert mine[0]["delta"]["role"] == "assistant"
            assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [7, 8], [[7, 8]]])
async def test_completions(prompt):
    async with edge() as (_, session):
        body = {"prompt": prompt, "max_tokens": 3, "logprobs": 1}
        async with session.post("/v1/completions", json=body) as response:
            answer = await response.json()
        assert answer["choices"][0]["text"] == b"".join(map(TOKENIZER.token_bytes, spelled(SAID)[:3])).decode()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_offsets_are_where_in_the_text_a_tokens_first_character_is(stream):
    async with edge() as (_, session):
        body = {"prompt": "hi", "max_tokens": 50, "logprobs": 0, "n": 2, "stream": stream}
        async with session.post("/v1/completions", json=body) as response:
            if stream:
                answers = [json.loads(line) for line in (await events(response))[:-1]]
                assert not any("usage" in answer for answer in answers)
            else:
                answers = [await response.json()]
    for index in (0, 1):
        mine = [c["logprobs"] for answer in answers for c in answer["choices"] if c["index"] == index and c["logprobs"]]
        offsets = [offset for logprobs in mine for offset in logprobs["text_offset"]]
        spellings = [TOKENIZER.token_bytes(token_id) for token_id in [*spelled(SAID), EOS_ID]]
        before = [b"".join(spellings[:i]).decode(errors="ignore") for i in range(len(spellings))]
        assert offsets == [len(text) for text in before]


BAD = [
    ({"messages": []}, 400, "messages"),
    (CHAT | {"messages": [{"role": "user", "content": "\udc00"}]}, 400, "messages[0].content"),
    (CHAT | {"messages": [{"role": "user", "content": "x" * 100_000}]}, 400, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0]"),
    (said(content=[{"type": "text", "text": "x", "cache_control": {}}]), 400, "messages[0].content[0].cache_control"),
    (said(content="x", tool_calls=[{}]), 400, "messages[0].tool_calls"),
    (said(content="x", reasoning_content="hm"), 400, "messages[0].reasoning_content"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, 400, "messages[0].role"),
    (CHAT | {"temperature": 10**400}, 400, "temperature"),
    (CHAT | {"logit_bias": {"1": 10**400}}, 400, "logit_bias.1"),
    (CHAT | {"model": "gpt"}, 404, "model"),
    (CHAT | {"temperature": 3}, 400, "temperature"),
    (CHAT | {"temperature": "hot"}, 400, "temperature"),
    (CHAT | {"n": True}, 400, "n"),
    (CHAT | {"logit_bias": {"191222": 1}}, 400, "logit_bias"),
    (CHAT | {"logit_bias": {"x": 1}}, 400, "logit_bias"),
    (CHAT | {"logit_bias": {"1_0": 1}}, 400, "logit_bias"),
    (CHAT | {"logit_bias": {"5": "1"}}, 400, "logit_bias.5"),
    (CHAT | {"logit_bias": {"5": True}}, 400, "logit_bias.5"),
    (CHAT | {"logit_bias": {"5": None}}, 400, "logit_bias.5"),
    (CHAT | {"tools": [{}]}, 400, "tools"),
    (CHAT | {"frobnicate": 1}, 400, "frobnicate"),
    (CHAT | {"echo": 0}, 400, "echo"),
    (CHAT | {"skip_special_tokens": False}, 400, "skip_special_tokens"),
    (CHAT | {"top_logprobs": 3}, 400, "top_logprobs"),
    (CHAT | {"top_logprobs": False}, 400, "top_logprobs"),
    (CHAT | {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
    (CHAT | {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT | {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT | {"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (CHAT | {"max_completion_tokens": 5, "max_tokens": "many"}, 400, "max_tokens"),
    (CHAT | {"max_completion_tokens": 5, "max_tokens": 5}, 400, "max_tokens"),
    (CHAT | {"min_tokens": -1}, 400, "min_tokens"),
    (CHAT | {"stop": 0}, 400, "stop"),
    (CHAT | {"stop": {}}, 400, "stop"),
    (CHAT | {"stop": ""}, 400, "stop[0]"),
    (CHAT | {"stop_token_ids": [999]}, 400, "stop_token_ids[0]"),
    (CHAT | {"stream_options": {"include_usage": True}}, 400, "stream_options"),
    (CHAT | {"stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage"),
    (CHAT | {"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage"),
    (CHAT | {"stream": True, "stream_options": []}, 400, "stream_options"),
    ([], 400, "body"),
]


async def test_errors_are_openais():
    async with edge() as (_, session):
        for body, status, param in BAD:
            async with session.post("/v1/chat/completions", json=body) as response:
                error = (await response.json())["error"]
            assert (response.status, error["param"], error["type"]) == (status, param, "invalid_request_error"), body
        async with session.post("/v1/chat/completions", data=b"{") as response:
            assert response.status == 400
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "x", "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "top_logprobs": 1}, "top_logprobs"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "best_of": True}, "best_of"),
    ],
)
async def test_refusals_of_a_completion_name_its_own_fields(body, param):
    async with edge() as (_, session), session.post("/v1/completions", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


async def test_an_earlier_answer_may_be_sent_back_as_it_came():
    answered = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []}
    body = CHAT | {"messages": [*CHAT["messages"], answered, {"role": "user", "content": "why?", "name": "eve"}]}
    async with edge() as (_, session), session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/v2/chat", 404, "not_found", None),
        ("POST", "/v1/embeddings", 404, "not_found", None),
        ("GET", "/v1/completions", 405, "method_not_allowed", "POST"),
        ("DELETE", "/v1/models", 405, "method_not_allowed", "GET,HEAD"),
    ],
)
async def test_what_is_no_call_of_ours_is_an_error_like_the_others(method, path, status, code, allow):
    async with edge() as (_, session), session.request(method, path) as response:
        error = (await response.json())["error"]
        assert (response.status, error["type"], error["code"]) == (status, "invalid_request_error", code)
        assert path in error["message"]
        assert response.headers.get("Allow") == allow


async def test_a_request_id_that_is_none_is_named_as_the_header_it_came_in():
    async with edge() as (_, session):
        headers = {"X-Request-Id": "x" * 129}
        async with session.post("/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert (await response.json())["error"]["param"] == "X-Request-Id"


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/v1/models", {}, 200),
        ("GET", "/v1/models/other", {}, 404),
        ("GET", "/health", {}, 200),
        ("GET", "/nowhere", {}, 404),
        ("DELETE", "/v1/models", {}, 405),
        ("POST", "/v1/completions", {}, 400),  # no body
        ("POST", "/v1/completions", {"Expect": "magic"}, 417),
    ],
)
async def test_a_request_id_comes_back_with_every_answer(method, path, more, status):
    async with edge() as (_, session):
        async with session.request(method, path, headers={"X-Request-Id": "mine"} | more) as response:
            assert (response.status, response.headers.getall("X-Request-Id")) == (status, ["mine"])
        async with session.request(method, path, headers=more) as response:
            assert "X-Request-Id" not in response.headers


def test_the_document_lists_every_field_and_no_other():
    text = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    listed = {name for row in re.findall(r"^\| `.*?\|", text, re.M) for name in re.findall(r"`([a-z_]+)`", row)}
    assert listed == COMMON | CHAT_ONLY | COMPLETION_ONLY | IGNORED | set(ABSENT)


@pytest.mark.parametrize(
    ("raw", "content_type", "param"),
    [
        (b"{", "application/json", "body"),
        (b"\xff", "application/json", "body"),
        (b"[" * 100_000, "application/json", "body"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "application/json", "body"),
        (b"{}", "application/json; charset=none-such", "Content-Type"),
    ],
)
async def test_a_body_that_cannot_be_read_is_the_clients_fault(raw, content_type, param):
    async with edge() as (_, session):
        headers = {"Content-Type": content_type}
        async with session.post("/v1/completions", data=raw, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == param


GOOD = json.dumps({"prompt": "hi", "max_tokens": 3}).encode()


@pytest.mark.parametrize(
    ("coding", "raw", "param"),
    [
        ("gzip", GOOD, "body"),
        ("deflate", GOOD, "body"),
        ("gzip", gzip.compress(GOOD)[:-9], "body"),
        ("gzip", gzip.compress(b" " * (MAX_MESSAGE_BYTES + 1)), "body"),
        ("gzip", b"", "body"),
        ("br", GOOD, "Content-Encoding"),
        ("zstd", GOOD, "Content-Encoding"),
        ("gzip, gzip", GOOD, "Content-Encoding"),
    ],
)
async def test_a_body_that_cannot_be_inflated_is_the_clients_fault(coding, raw, param, caplog):
    async with edge() as (_, session):
        headers = {"Content-Encoding": coding}
        async with session.post("/v1/completions", data=raw, headers=headers) as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
        async with session.post("/v1/completions", data=GOOD) as response:  # the connection is none the worse
            assert response.status == 200
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize(
    ("coding", "raw"),
    [
        ("gzip", gzip.compress(GOOD)),
        ("GZIP", gzip.compress(GOOD)),
        ("deflate", zlib.compress(GOOD)),
        ("identity", GOOD),
    ],
)
async def test_a_compressed_body_is_read(coding, raw):
    async with edge() as (_, session):
        headers = {"Content-Encoding": coding}
        async with session.post("/v1/completions", data=raw, headers=headers) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("given", ["mine", ""])
async def test_a_fault_of_ours_is_said_with_the_requests_id(given, caplog):
    async with edge() as (cluster, session):

        def broken(_name):
            raise KeyError("lost")

        cluster.replica.core.model = broken
        headers = {"X-Request-Id": given} if given else {}
        async with session.post("/v1/chat/completions", json=CHAT, headers=headers) as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"], error["code"]) == (500, "server_error", "internal")
        named = response.headers["X-Request-Id"]
        assert named == given or (not given and named.startswith("req-"))
        assert named in error["message"]
        assert "lost" not in error["message"]
    (said,) = [one for one in caplog.records if one.exc_info]
    assert isinstance(said.exc_info[1], KeyError)


async def test_a_fault_of_ours_in_the_middle_of_an_answer_breaks_it_off_and_is_logged(caplog, monkeypatch):
    def broken(*_given, **_named):
        raise KeyError("lost")

    monkeypatch.setattr(http_edge, "usage_chunk", broken)
    async with edge() as (_, session):
        body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        with pytest.raises(aiohttp.ClientPayloadError):
            async with session.post("/v1/chat/completions", json=body) as response:
                await response.text()
    (said,) = [one for one in caplog.records if one.exc_info]
    assert isinstance(said.exc_info[1], KeyError)


async def test_an_expectation_that_is_none_is_refused_like_the_rest():
    async with edge() as (_, session):
        async with session.post("/v1/completions", data=GOOD, headers={"Expect": "miracles"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (417, "expectation_failed")
        async with session.post("/v1/completions", data=GOOD, expect100=True) as response:
            assert response.status == 200


async def test_shedding_says_when_to_retry():
    full = AdmissionPolicy(max_live=0)
    async with (
        edge(admission=full) as (_, session),
        session.post("/v1/chat/completions", json=CHAT) as response,
    ):
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "overloaded"


async def test_an_outage_is_no_overload_and_says_when_to_retry():
    async with edge(admission=AdmissionPolicy(max_wait_s=0.2)) as (cluster, session):
        await cluster.decodes["d0"].kill()
        await until(lambda: not cluster.replica.fleet.ready("decode"))
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"], error["code"]) == (503, "server_error", "no_instance")
        assert int(response.headers["Retry-After"]) >= 1


async def test_a_disconnect_cancels():
    async with edge("hello world " * 300) as (cluster, session):
        cluster.decodes["d0"].step_s = 0.02
        response = await session.post("/v1/chat/completions", json=CHAT | {"stream": True})
        await response.content.readline()
        assert cluster.replica.core.live_requests == 1
        response.close()
        await cluster.idle(timeout_s=2.0)


async def test_an_error_in_the_middle_ends_the_stream_without_done():
    async with edge("hello world " * 300) as (cluster, session):
        cluster.decodes["d0"].step_s = 0.02
        body = CHAT | {"stream": True, "deadline_ms": 300}
        async with session.post("/v1/chat/completions", json=body) as response:
            lines = await events(response)
        assert json.loads(lines[-1])["error"]["code"] == "deadline_exceeded"


async def test_models_and_health_and_request_ids():
    async with edge() as (_, session):
        async with session.get("/v1/models") as response:
            (listed,) = (await response.json())["data"]
            assert (listed["id"], listed["object"]) == ("tiny", "model")
        async with session.get("/v1/models/tiny") as response:
            assert await response.json() == listed
        for other in ("gpt", "org/gpt"):
            async with session.get(f"/v1/models/{other}") as response:
                error = (await response.json())["error"]
            assert (response.status, error["param"], error["code"]) == (404, "model", "unknown_model")
        async with session.get("/health") as response:
            assert response.status == 200
        async with session.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "mine"}) as response:
            assert response.headers["X-Request-Id"] == "mine"
            assert (await response.json())["id"] == "chatcmpl-mine"


async def test_at_once_while_the_client_leaves():
    async with edge("hello world " * 300) as (cluster, session):
        cluster.decodes["d0"].step_s = 0.02
        asking = asyncio.create_task(session.post("/v1/chat/completions", json=CHAT))
        await until(lambda: bool(cluster.decodes["d0"].works))
        asking.cancel()
        await cluster.idle(timeout_s=2.0)
