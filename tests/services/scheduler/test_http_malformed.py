"""What is no request, or no whole one, over real sockets: refused in JSON that names what is wrong."""

import asyncio
import json

import pytest
from aiohttp import StreamReader

from common.rpc.channel import MAX_MESSAGE_BYTES
from services.scheduler import http_body
from tests.services.scheduler.test_http_edge import edge

WAIT_S = 10.0
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"


async def answer_to(
    port: int, sent: bytes, taken: asyncio.Event | None = None, later: bytes = b""
) -> tuple[int, str, dict[str, str]]:
    """Status, content type and error of the first answer; what is sent later waits until the server has `taken`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_S):
            writer.write(sent)
            if taken is not None:
                await taken.wait()
                writer.write(later)
            status = int((await reader.readline()).split()[1])
            headers = {}
            while (line := (await reader.readline()).decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers["content-length"]))
    finally:
        writer.close()
        await writer.wait_closed()
    return status, headers["content-type"], json.loads(body)["error"]


@pytest.mark.parametrize(
    ("raw", "status", "names"),
    [
        (b"GARBAGE\r\n\r\n", 400, "GARBAGE"),
        (b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "G@T"),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 400, "HTTP version"),
        (b"GET http://[bad/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "http://[bad/"),
        (b"GET /" + b"y" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "8190 bytes"),
        (GET + b"X-Long: " + b"y" * 10_000 + b"\r\n\r\n", 431, "8190 bytes"),
        (GET + b"".join(b"X-%d: y\r\n" % i for i in range(300)) + b"\r\n", 400, "Too many headers"),
        (GET + b"X Y: 1\r\n\r\n", 400, "X Y: 1"),
        (GET + b"X: a\x00b\r\n\r\n", 400, "header value"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "Host"),
        (POST + b"Content-Length: many\r\n\r\n", 400, "Content-Length"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400, "chunk size"),
        (bytes.fromhex("16030100a5010000a10303") + b"x" * 150, 400, "HTTPS"),
    ],
)
async def test_what_is_no_http_is_an_error_like_the_others(raw, status, names, caplog):
    async with edge() as (_, session):
        answered, content_type, error = await answer_to(session._base_url.port, raw)
        assert (answered, content_type) == (status, "application/json; charset=utf-8")
        assert error["type"] == "invalid_request_error"
        assert error["code"] == ("bad_request" if status == 400 else "request_header_fields_too_large")
        assert names in error["message"]
        assert "\n" not in error["message"]
        async with session.get("/v1/models") as response:
            assert response.status == 200
    assert not [one for one in caplog.records if one.exc_info]  # it is no news, and what came may be a secret
    assert "GARBAGE" not in caplog.text


async def test_a_body_that_says_it_is_too_large_is_not_waited_for():
    async with edge() as (_, session):
        head = POST + b"Content-Length: %d\r\n\r\n{" % (MAX_MESSAGE_BYTES + 1)
        status, _, error = await answer_to(session._base_url.port, head)
    assert (status, error["param"], error["code"]) == (400, "body", "invalid_input")
    assert str(MAX_MESSAGE_BYTES) in error["message"]


@pytest.mark.parametrize(
    ("sent", "later"),
    [
        (POST + b"Content-Length: 100\r\n\r\n{", b""),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"zz\r\nhello\r\n0\r\n\r\n"),  # the parser stops there
    ],
)
async def test_a_body_that_does_not_go_on_is_not_waited_for_without_end(sent, later, monkeypatch):
    taken, readany = asyncio.Event(), StreamReader.readany

    async def read(content):
        more = await readany(content)
        taken.set()
        return more

    monkeypatch.setattr(StreamReader, "readany", read)
    monkeypatch.setattr(http_body, "_MORE_WITHIN_S", 1.0)
    async with edge() as (_, session):
        status, _, error = await answer_to(session._base_url.port, sent, taken, later)
    assert (status, error["param"]) == (400, "body")
    assert "1 bytes and then nothing" in error["message"]


async def test_a_body_that_dribbles_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(http_body, "_WHOLE_WITHIN_S", 0.5)
    async with edge() as (_, session), asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)
        writer.write(POST + b"Content-Length: 1000\r\n\r\n")
        answer = asyncio.ensure_future(reader.readuntil(b"in all"))
        while not answer.done():  # each pause is far shorter than a pause may be
            writer.write(b" ")
            await asyncio.wait([answer], timeout=0.05)
        assert answer.result().startswith(b"HTTP/1.1 400 ")
        assert b"nor take 0.5 s in all" in answer.result()
        assert b" bytes and no end" in answer.result()
        writer.close()


@pytest.mark.parametrize(
    ("content_type", "param"),
    [
        ("application/x-www-form-urlencoded", "Content-Type"),
        ("multipart/form-data; boundary=x", "Content-Type"),
        ("text/plain", "Content-Type"),
        ("application/json", "body"),
        ("application/problem+json", "body"),
        ("", "body"),
    ],
)
async def test_a_body_of_another_kind_is_named_by_its_content_type(content_type, param):
    async with edge() as (_, session):
        declared = b"Content-Type: %s\r\n" % content_type.encode() if content_type else b""
        raw = POST + declared + b"Content-Length: 9\r\n\r\nprompt=hi"
        status, _, error = await answer_to(session._base_url.port, raw)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert "JSON" in error["message"]
