"""Free ports of this machine."""

import socket
from contextlib import ExitStack

from common.errors import ConfigError, DependencyUnavailable

_ATTEMPTS = 100
_LAST_PORT = 65535


def free_ports(count: int, host: str = "127.0.0.1") -> int:
    """The first of `count` consecutive ports nobody listens on now.

    Another process may still be quicker; its victim then ends with an error that names the port.
    """
    for _ in range(_ATTEMPTS):
        with ExitStack() as held:
            first = int(held.enter_context(socket.create_server((host, 0))).getsockname()[1])
            if first + count - 1 > _LAST_PORT:
                continue
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return first
    raise DependencyUnavailable(f"no {count} consecutive free ports on {host} in {_ATTEMPTS} attempts")


def require_free(field: str, host: str, first: int, count: int) -> None:
    """Whoever answers at a port that is taken would be believed to be ours.

    Raises:
        ConfigError: one of the `count` ports from `first` on cannot be listened on; names `field` and port.
    """
    for port in range(first, first + count):
        if port > _LAST_PORT:
            raise ConfigError(f"{field} = {first}: {count} ports from there on go past {_LAST_PORT}")
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            raise ConfigError(f"{field} = {first}: cannot listen on {host}:{port}: {error.strerror}") from error
