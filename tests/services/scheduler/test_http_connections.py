"""How long and how many connections are held on which no request is, over real sockets."""

import asyncio
import json
import resource
from contextlib import asynccontextmanager

import pytest

from services.scheduler import connection_limit, http_connection
from tests.services.scheduler.test_http_edge import edge
from tests.services.scheduler.test_http_malformed import GET, POST, WAIT_S

BODY = b'{"prompt": "hi", "max_tokens": 3}'


@asynccontextmanager
async def connected(session):
    reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)
    try:
        async with asyncio.timeout(WAIT_S):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """Status and body of the next one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def asked(reader, writer):
    writer.write(GET + b"\r\n")
    status, models = await answer(reader)
    assert (status, models["object"]) == (200, "list")


async def test_a_connection_that_sends_nothing_ends_without_a_word(monkeypatch):
    monkeypatch.setattr(http_connection, "_HEAD_WITHIN_S", 1.0)
    async with edge() as (_, session), connected(session) as (reader, _):
        assert await reader.read() == b""


@pytest.mark.parametrize("before", ["connecting", "an answer"])
@pytest.mark.parametrize("more", [b"y", b""])
async def test_a_head_that_is_not_whole_in_time_is_an_error_like_the_others(before, more, monkeypatch):
    monkeypatch.setattr(http_connection, "_HEAD_WITHIN_S", 0.5)
    async with edge() as (_, session), connected(session) as (reader, writer):
        if before == "an answer":
            await asked(reader, writer)
        writer.write(GET + b"X-Long: ")
        answered = asyncio.ensure_future(answer(reader))
        while not answered.done():  # each pause is far shorter than the bound
            writer.write(more)
            await asyncio.wait([answered], timeout=0.05)
        status, document = answered.result()
        assert await reader.read() == b""
    error = document["error"]
    assert (status, error["type"], error["code"]) == (408, "invalid_request_error", "request_timeout")
    assert "within 0.5 s" in error["message"]


async def test_an_idle_connection_ends_but_not_amid_a_head(monkeypatch):
    monkeypatch.setattr(http_connection, "_IDLE_WITHIN_S", 1.0)
    async with edge() as (_, session), connected(session) as (reader, writer):
        await asked(reader, writer)
        writer.write(b"GET /v1/mod")
        async with connected(session) as (idle, idle_writer):
            await asked(idle, idle_writer)
            assert await idle.read() == b""  # who is idle since later has ended
        writer.write(b"els HTTP/1.1\r\nHost: a\r\n\r\n")
        status, _ = await answer(reader)
        assert status == 200
        assert await reader.read() == b""


async def test_a_body_may_take_longer_than_a_head(monkeypatch):
    monkeypatch.setattr(http_connection, "_HEAD_WITHIN_S", 1.0)
    async with edge() as (_, session), connected(session) as (reader, writer):
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY[:5])
        async with connected(session) as (silent, _):
            assert await silent.read() == b""  # who came later has ended
        writer.write(BODY[5:])
        status, document = await answer(reader)
        assert (status, document["usage"]["completion_tokens"]) == (200, 3)


@pytest.mark.parametrize("source", ["ours", "descriptors"])
async def test_one_connection_too_many_is_refused_until_another_ends(source, monkeypatch, caplog):
    if source == "ours":
        monkeypatch.setattr(connection_limit, "_MOST", 2)
    else:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (5, resource.RLIM_INFINITY))
    async with edge() as (cluster, session), connected(session) as held:
        await asked(*held)
        async with connected(session) as other:
            await asked(*other)
            for _ in range(3):
                async with connected(session) as (reader, _):
                    status, document = await answer(reader)
                    assert await reader.read() == b""
                assert (status, document["error"]["type"]) == (503, "server_error")
                assert "no more than 2 HTTP connections" in document["error"]["message"]
            await asked(*held)
            assert cluster.metric("tandem_refused_connections_total") == 3

        async def served():
            async with connected(session) as (reader, writer):
                writer.write(GET + b"\r\n")
                return (await answer(reader))[0] == 200

        async with asyncio.timeout(WAIT_S):
            while not await served():  # the server has yet to see that the other left
                pass
    said = [one for one in caplog.records if "no more HTTP connections" in one.getMessage()]
    assert len(said) == 1
