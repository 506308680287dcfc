"""Asks every scheduler what it sees."""

import asyncio
import socket
from collections.abc import Sequence

from common.errors import TandemError
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import ClusterInfo
from common.telemetry.logs import get_log
from services.autoscaler.fleet_view import FleetView, merge

log = get_log(__name__)


class SchedulerWatch:
    """Keeps a connection to every address that the given names have now.

    Args:
        names: host:port; a headless service's name has one address for each replica.
    """

    def __init__(self, names: Sequence[str], timeout_s: float) -> None:
        self._names = names
        self._timeout_s = timeout_s
        self._clients: dict[str, InferenceClient] = {}

    async def look(self) -> FleetView:
        """Who does not answer in time is left out, and the view says that it is not complete."""
        addresses, resolved = await self._addresses()
        for gone in self._clients.keys() - addresses:
            await self._clients.pop(gone).close()
        for new in addresses - self._clients.keys():
            self._clients[new] = InferenceClient(new)
        answers = await asyncio.gather(*(self._ask(one) for one in self._clients.values()))
        heard = [answer for answer in answers if answer is not None]
        return merge(heard, complete=resolved and len(heard) == len(answers))

    async def close(self) -> None:
        while self._clients:
            await self._clients.popitem()[1].close()

    async def _addresses(self) -> tuple[set[str], bool]:
        """Every address, and whether all names have one."""
        loop, addresses, resolved = asyncio.get_running_loop(), set(), True
        for name in self._names:
            host, _, port = name.rpartition(":")
            try:
                found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except OSError as error:
                log.warning("scheduler's name has no address", name=name, why=str(error))
                resolved = False
                continue
            for family, _, _, _, address in found:
                ip = str(address[0])
                addresses.add(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
        return addresses, resolved

    async def _ask(self, client: InferenceClient) -> ClusterInfo | None:
        try:
            return await client.cluster(self._timeout_s)
        except TandemError as error:
            log.warning("scheduler does not answer", scheduler=client.address, why=str(error))
            return None
