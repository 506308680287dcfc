import pytest

from common.state.connect import connect_redis
from common.state.keys import Keys


@pytest.fixture
async def redis(valkey_url):
    client = await connect_redis(valkey_url, timeout_s=5.0, within_s=10.0)
    yield client
    await client.aclose()


@pytest.fixture
def keys(cluster):
    return Keys(cluster)
