"""Free ports of this machine."""

import socket
from contextlib import ExitStack


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct ports nobody listens on now. Another process may still be quicker; its victim then says which port."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [int(s.getsockname()[1]) for s in sockets]
