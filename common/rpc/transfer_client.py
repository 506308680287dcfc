"""Decode's side of one transfer's stream from prefill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import grpc

from common.errors import DependencyUnavailable, LeaseLost, PeerDisconnected, TandemError, WorkerLost
from common.rpc.convert_transfer import (
    TransferAbort,
    TransferEvent,
    TransferOpen,
    TransferRelease,
    transfer_event_from_wire,
    transfer_message_to_wire,
)
from common.rpc.errors import from_rpc_error
from common.rpc.trace_metadata import outgoing
from protos import engine_pb2_grpc


class TransferStream:
    """One open transfer: read its events, then release or abort it. Leaving it otherwise tells the source nothing new:
    it sees the stream break, which ends the lease as an abort does.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, opening: TransferOpen) -> None:
        self._address = address
        self._opening = opening
        self._call = engine_pb2_grpc.PrefillStub(channel).Transfer(metadata=outgoing())

    async def __aenter__(self) -> Self:
        try:
            await self._call.write(transfer_message_to_wire(self._opening))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._failure() from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()

    async def events(self) -> AsyncIterator[TransferEvent]:
        """What the source announces; a failure it tells is raised.

        Raises:
            TransferError: PeerDisconnected when the source is gone, LeaseLost when it does not hold the blocks.
        """
        try:
            async for wire in self._call:
                event = transfer_event_from_wire(wire)
                if isinstance(event, TandemError):
                    raise event
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._translated(from_rpc_error(error, self._address)) from error
        raise LeaseLost(f"{self._address} ended the transfer of {self._opening.work_id}")

    async def release(self) -> None:
        """Everything was read. No matter when the stream has ended: the lease has too."""
        await self._end(TransferRelease())

    async def abort(self, reason: str) -> None:
        """Nothing more will be read."""
        await self._end(TransferAbort(reason))

    async def _end(self, message: TransferRelease | TransferAbort) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(transfer_message_to_wire(message))
            await self._call.done_writing()

    async def _failure(self) -> TandemError:
        details = await self._call.details()
        return PeerDisconnected(f"{self._address}: {details}")

    def _translated(self, error: TandemError) -> TandemError:
        if isinstance(error, DependencyUnavailable | WorkerLost):
            return PeerDisconnected(str(error))
        return error
