"""The door to NATS: bounded waiting at the start, then reconnecting for ever in the background."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError, SlowConsumerError

from common.bus.messages import M, Message, decode, encode
from common.cancellation import kept_cancellation
from common.config.address import without_password
from common.errors import DependencyUnavailable, InvalidInput
from common.telemetry.logs import get_log

log = get_log(__name__)

_RETRY_S = 0.25
_CLOSED_WITHIN_S = 2.0
_PENDING_MESSAGES = 4096  # of one subscription, bounds memory behind a slow handler
_PENDING_BYTES = 4 << 20
_NO_RESPONDERS = "503"  # the server's word that nobody is subscribed


@dataclass(slots=True)
class BusCounters:
    """Totals since the start. Nothing is lost without being counted, as far as this side can tell."""

    published: int = 0
    unpublished: int = 0  # there was no connection
    received: int = 0
    malformed: int = 0
    overrun: int = 0  # dropped behind a slow handler
    broken: int = 0  # their handling failed, by a fault of ours
    disconnects: int = 0


class Bus:
    """Typed messages on one NATS connection; made by `connect_bus`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = Client()
        self._closing = False
        self._refusals: set[str] = set()  # each said once
        self.counters = BusCounters()

    async def connect(self, name: str, timeout_s: float, ping_s: float) -> None:
        """One attempt; see `connect_bus`.

        Raises:
            DependencyUnavailable: nobody answered within `timeout_s`.
        """
        with translated("NATS at start"):
            await self._client.connect(
                servers_of(self._url),
                name=name,
                error_cb=self._failed,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                connect_timeout=timeout_s,
                max_reconnect_attempts=1,
                reconnect_time_wait=_RETRY_S,
                ping_interval=ping_s,
                no_echo=True,  # who asks is no answer
                max_outstanding_pings=2,
            )
        self._client.options["max_reconnect_attempts"] = -1  # the start is bounded; from here on it may take for ever

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    async def publish(self, subject: str, message: Message) -> bool:
        """Say something once. False: there is no connection now and it is lost, as anything on the bus may be."""
        if not self.connected:
            self.counters.unpublished += 1
            return False
        try:
            with kept_cancellation():
                await self._client.publish(subject, encode(message))
        except NatsError:
            self.counters.unpublished += 1
            return False
        self.counters.published += 1
        return True

    async def subscribe(self, subject: str, kind: type[M], heard: Callable[[M], None]) -> None:
        """Call `heard` with every message of this kind, in the order of arrival. It must not block.

        Raises:
            DependencyUnavailable: the connection is closed.
        """

        async def receive(message: Msg) -> None:
            said = self._decoded(kind, message)
            if said is not None:
                heard(said)

        await self._subscribe(subject, receive)

    async def answer(self, subject: str, kind: type[M], reply: Callable[[M], Message]) -> None:
        """Answer every question of this kind. `reply` must not block.

        Raises:
            DependencyUnavailable: the connection is closed.
        """

        async def receive(message: Msg) -> None:
            asked = self._decoded(kind, message)
            if asked is not None and message.reply:
                await self.publish(message.reply, reply(asked))

        await self._subscribe(subject, receive)

    async def ask(
        self, subject: str, question: Message, kind: type[M], enough: Callable[[M], bool], within_s: float
    ) -> list[M]:
        """Ask everybody else who answers there, until an answer is `enough` or the time is over; gives all that came.

        Whether all have answered cannot be known, so without an answer that is enough this takes `within_s`; when
        nobody else is there, none at all.

        Raises:
            DependencyUnavailable: there is no connection, or no sign of life on it within `within_s`.
        """
        if not self.connected:
            raise DependencyUnavailable("NATS is not connected")
        answers: list[M] = []
        inbox, came = self._client.new_inbox(), asyncio.Queue[Msg]()
        with translated(f"question to {subject}"):
            subscription = await self._client.subscribe(inbox, cb=came.put)
            try:
                await self._client.publish(subject, encode(question), reply=inbox)
                async with asyncio.timeout(within_s):
                    while not (answers and enough(answers[-1])):
                        message = await came.get()
                        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
                            break
                        answer = self._decoded(kind, message)
                        answers += [] if answer is None else [answer]
            except TimeoutError as error:
                if not answers:
                    raise DependencyUnavailable(f"nobody answered on {subject} within {within_s:g} s") from error
            finally:
                await subscription.unsubscribe()
        return answers

    def _decoded(self, kind: type[M], message: Msg) -> M | None:
        """None for what is none, which is counted."""
        try:
            said = decode(kind, message.data)
        except InvalidInput as error:
            self.counters.malformed += 1
            log.warning("malformed message on the bus", subject=message.subject, why=str(error))
            return None
        self.counters.received += 1
        return said

    async def _subscribe(self, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> None:
        with translated(f"subscription to {subject}"):
            await self._client.subscribe(
                subject, cb=receive, pending_msgs_limit=_PENDING_MESSAGES, pending_bytes_limit=_PENDING_BYTES
            )

    async def flush(self, within_s: float) -> None:
        """Wait until the server has seen everything said so far, subscriptions included.

        Raises:
            DependencyUnavailable: it did not answer within `within_s`.
        """
        with translated("flush of the bus"):
            # The client's first ping overtakes what waits to be sent; after its answer all of that is on the wire.
            await self._client.flush(timeout=within_s)
            await self._client.flush(timeout=within_s)

    async def close(self) -> None:
        """End the connection; what was said before is sent as far as the server takes it within `_CLOSED_WITHIN_S`.

        Never fails: it comes last, and must not take the place of an error that is on its way out.
        """
        self._closing = True
        try:
            with translated("close of the bus"):
                async with asyncio.timeout(_CLOSED_WITHIN_S):
                    await self._client.close()
        except DependencyUnavailable as error:
            log.warning("NATS did not take what was said last", url=without_password(self._url), why=error)

    async def _failed(self, error: Exception) -> None:
        """Of lost connections others tell; the rest would be nobody's business, as the client catches all of it."""
        if isinstance(error, SlowConsumerError):
            self.counters.overrun += 1
        elif not isinstance(error, NatsError | OSError | TimeoutError):
            self.counters.broken += 1
            log.error("what came on the bus was not handled", error=error)
        elif type(error) is NatsError and str(error) not in self._refusals:  # the server's word, as of a missing right
            self._refusals.add(str(error))
            log.error("NATS refuses", url=without_password(self._url), why=str(error))

    async def _disconnected(self) -> None:
        if not self._closing:
            self.counters.disconnects += 1
            log.warning("NATS lost", url=without_password(self._url))

    async def _reconnected(self) -> None:
        log.info("NATS is back", url=without_password(self._url))


async def connect_bus(url: str, name: str, timeout_s: float, within_s: float, ping_s: float = 2.0) -> Bus:
    """A connected bus. Afterwards lost connections come back by themselves, subscriptions included.

    Args:
        url: nats://host:port, or several with commas between: the servers of one NATS cluster.
        name: who this is, for the server's monitoring.
        timeout_s: for one attempt to connect.
        within_s: how long to wait for a server that is not there yet.
        ping_s: a server that stopped answering is noticed after three of these.

    Raises:
        DependencyUnavailable: nobody answered within `within_s`.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    told = False
    while True:
        bus = Bus(url)
        try:
            await bus.connect(name, timeout_s, ping_s)
        except DependencyUnavailable as error:
            waited_s = loop.time() - started_s
            if waited_s >= within_s:
                raise DependencyUnavailable(
                    f"no NATS at {without_password(url)} within {within_s:g} s: {error}"
                ) from error
            if not told:
                log.warning("waiting for NATS", url=without_password(url), within_s=within_s)
                told = True
            await asyncio.sleep(min(_RETRY_S, within_s))
            continue
        return bus


def servers_of(url: str) -> list[str]:
    """The servers that a URL names, as the client takes them."""
    return [one.strip() for one in url.split(",")]


@contextmanager
def translated(what: str) -> Iterator[None]:
    """NATS' errors, lost connections and timeouts become DependencyUnavailable."""
    try:
        with kept_cancellation():
            yield
    except (NatsError, NoServersError, OSError, TimeoutError) as error:
        raise DependencyUnavailable(f"{what}: {type(error).__name__}: {error}") from error
