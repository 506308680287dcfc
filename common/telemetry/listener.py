"""A listening socket for the HTTP ends of a service."""

import socket

ANY = ("0.0.0.0", "::")


def listen(host: str, port: int) -> socket.socket:
    """Port 0 takes a free one. Every address, in either spelling, means those of both families, as it does to gRPC.

    Raises:
        OSError: the address cannot be bound.
    """
    if host in ANY and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
