"""Ports of this machine: free ones, and whether those that a file asks for can be had."""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from common.errors import ConfigError, DependencyUnavailable
from common.telemetry.listener import ANY, listen

_ATTEMPTS = 100
_FIRST_PORT = 10000  # below, servers have their usual places
_LAST_PORT = 65535
_KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> int:
    """The first of `count` consecutive ports nobody listens on now.

    None that the kernel gives away by itself, as it does for every connection, unless it has them all: their owner asks
    for them seconds later. Who asks for the same number may still be quicker; its victim then ends with an error that
    names the port.
    """
    kernel = kernel_ports()
    every = range(_FIRST_PORT, _LAST_PORT - count + 2)
    choices = [first for first in every if first + count <= kernel.start or first >= kernel.stop] or every
    for _ in range(_ATTEMPTS):
        with ExitStack() as held:
            first = random.choice(choices)
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return first
    raise DependencyUnavailable(f"no {count} consecutive free ports on {host} in {_ATTEMPTS} attempts")


def kernel_ports() -> range:
    """From which the kernel takes a port for whoever names none; empty where it does not say."""
    try:
        low, high = map(int, _KERNEL_PORTS.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return range(0)
    return range(low, high + 1)


@dataclass(frozen=True, slots=True)
class PortRange:
    """`count` consecutive ports that `field` asks for by the number of the first."""

    field: str
    host: str
    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def __str__(self) -> str:
        return f"{self.field} = {self.first}"


def require_ports(ranges: Sequence[PortRange]) -> None:
    """Whoever answers at a port that is taken would be believed to be ours.

    Raises:
        ConfigError: a range goes past the last port, meets another one, or has a port that cannot be listened on;
            names field, value and limit.
    """
    for one in ranges:
        if one.last > _LAST_PORT:
            most = _LAST_PORT - one.count + 1
            raise ConfigError(f"{one}: {one.count} ports from there on go past {_LAST_PORT}, so at most {most}")
    for one, other in combinations(ranges, 2):
        same_host = one.host == other.host or not {"", *ANY}.isdisjoint((one.host, other.host))
        if same_host and one.first <= other.last and other.first <= one.last:
            raise ConfigError(f"{one}: ports {one.first} to {one.last} meet those of {other}, to {other.last}")
    for one in ranges:
        for port in range(one.first, one.last + 1):
            try:
                listen(one.host, port).close()
            except OSError as error:
                raise ConfigError(f"{one}: cannot listen on {one.host}:{port}: {error.strerror}") from error
