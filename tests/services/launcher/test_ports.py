import socket

import pytest

from common.errors import ConfigError
from services.launcher.ports import free_ports, require_free


def test_free_ports_are_free() -> None:
    require_free("scheduler.port", "127.0.0.1", free_ports(3), 3)


def test_a_taken_port_is_named_with_its_field() -> None:
    first = free_ports(2)
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        pytest.raises(ConfigError, match=rf"scheduler.port = {first}: cannot listen on 127.0.0.1:{first + 1}: Addr"),
    ):
        require_free("scheduler.port", "127.0.0.1", first, 2)


def test_a_port_past_the_last_is_refused() -> None:
    with pytest.raises(ConfigError, match="65535"):
        require_free("scheduler.port", "127.0.0.1", 65536, 1)
