"""Deltas of one request on their way to its client."""

import asyncio
from collections import OrderedDict

from common.errors import Cancelled, TandemError
from common.rpc.inference_data import Delta


class Outbox:
    """What the client has not taken yet. A choice has at most one delta here: later ones are joined to it.

    So a client that is slower than the tokens gets fewer, larger deltas. More than `limit_tokens` end the request:
    a reader that does not read never holds blocks.
    """

    def __init__(self, limit_tokens: int) -> None:
        self._limit_tokens = limit_tokens
        self._deltas: OrderedDict[int, Delta] = OrderedDict()
        self._tokens = 0
        self._wake = asyncio.Event()
        self._closed = False
        self.overflowed = False
        self._error: TandemError | None = None

    def put(self, delta: Delta) -> None:
        """
        Raises:
            Cancelled: the client reads too slowly.
        """
        before = self._deltas.get(delta.choice)
        self._deltas[delta.choice] = delta if before is None else _joined(before, delta)
        if delta.usage is not None:  # the stream's last, also when what it is joined to was not
            self._deltas.move_to_end(delta.choice)
        self._tokens += len(delta.token_ids)
        self._wake.set()
        if self._tokens > self._limit_tokens:
            self.overflowed = True
            raise Cancelled(f"the client is slow: {self._tokens} tokens wait for it, the limit is {self._limit_tokens}")

    def close(self, error: TandemError | None = None) -> None:
        """Nothing follows; `error` is raised after what is here was taken."""
        self._closed, self._error = True, error
        self._wake.set()

    def close_unless_closed(self, error: TandemError) -> None:
        if not self._closed:
            self.close(error)

    async def take(self) -> Delta | None:
        """The next delta, or None at the end."""
        while not self._deltas:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._wake.clear()
            await self._wake.wait()
        _, delta = self._deltas.popitem(last=False)
        self._tokens -= len(delta.token_ids)
        return delta


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(
        request_id=first.request_id,
        choice=first.choice,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        finish_reason=second.finish_reason,
        stop=second.stop,
        usage=second.usage,
        ledger=second.ledger,
    )
