import os
import signal

import pytest

from common.errors import InternalError
from common.state.connect import close_redis, connect_redis
from tests.servers import aborted


async def test_the_close_is_bounded_and_hides_no_error(own_valkey, caplog):
    """A server that stopped does not take what was written to it, so the connection cannot be closed in order."""
    server = own_valkey()
    client = await connect_redis(server.url, timeout_s=0.5, within_s=10.0)
    (connection,) = client.connection_pool._available_connections
    os.kill(server.pid, signal.SIGSTOP)
    connection._writer.write(bytes(64 << 20))
    writer = connection._writer

    async def end() -> None:
        try:
            raise InternalError("ours")
        finally:
            await close_redis(client)

    with pytest.raises(InternalError, match="ours"):
        await end()
    assert "Redis was left in the middle of its close" in caplog.text
    os.kill(server.pid, signal.SIGCONT)
    await aborted(writer)
