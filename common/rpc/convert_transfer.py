"""The transfer stream's messages: wire <-> plain data, both ways."""

from dataclasses import dataclass

from common.errors import InvalidInput, TandemError
from common.kv.tags import CHAIN_HASH_LOW_BYTES, chain_hash_low
from common.request import Compatibility, Handoff, ReadyBlock, TransferHello
from common.rpc.convert import (
    compatibility_from_wire,
    compatibility_to_wire,
    handoff_from_wire,
    handoff_to_wire,
)
from common.rpc.errors import from_failure, to_failure
from protos import engine_pb2

TransferEvent = TransferHello | tuple[ReadyBlock, ...] | Handoff | TandemError


@dataclass(frozen=True, slots=True)
class TransferOpen:
    """A reader's first message. `first_block`: those before it are already in the reader's cache."""

    work_id: str
    reader: str
    incarnation: int
    compatibility: Compatibility
    first_block: int


@dataclass(frozen=True, slots=True)
class TransferRelease:
    """The reader has everything it needs."""


@dataclass(frozen=True, slots=True)
class TransferAbort:
    """The reader gives up."""

    reason: str


TransferMessage = TransferOpen | TransferRelease | TransferAbort


def transfer_message_to_wire(message: TransferMessage) -> engine_pb2.TransferRequest:
    match message:
        case TransferOpen():
            opening = engine_pb2.TransferOpen(
                work_id=message.work_id,
                reader=message.reader,
                incarnation=message.incarnation,
                compatibility=compatibility_to_wire(message.compatibility),
                first_block=message.first_block,
            )
            return engine_pb2.TransferRequest(open=opening)
        case TransferRelease():
            return engine_pb2.TransferRequest(release=engine_pb2.TransferRelease())
        case TransferAbort():
            return engine_pb2.TransferRequest(abort=engine_pb2.TransferAbort(reason=message.reason))


def transfer_message_from_wire(wire: engine_pb2.TransferRequest) -> TransferMessage:
    match wire.WhichOneof("message"):
        case "open":
            return TransferOpen(
                wire.open.work_id,
                wire.open.reader,
                wire.open.incarnation,
                compatibility_from_wire(wire.open.compatibility),
                wire.open.first_block,
            )
        case "release":
            return TransferRelease()
        case "abort":
            return TransferAbort(wire.abort.reason)
        case _:
            raise InvalidInput("message", "unset", "open, release or abort")


def transfer_event_to_wire(event: TransferEvent) -> engine_pb2.TransferEvent:
    match event:
        case TransferHello():
            hello = engine_pb2.TransferHello(
                agent_metadata=event.agent_metadata,
                incarnation=event.incarnation,
                pool_address=event.pool_address,
                block_bytes=event.block_bytes,
                device=event.device,
                memory=event.memory,
                blocks=event.blocks,
            )
            return engine_pb2.TransferEvent(hello=hello)
        case tuple():
            blocks = [
                engine_pb2.ReadyBlock(
                    index=block.index,
                    block=block.block,
                    tag=block.tag,
                    chain_hash_low=chain_hash_low(block.chain_hash),
                    tokens=block.tokens,
                )
                for block in event
            ]
            return engine_pb2.TransferEvent(blocks=engine_pb2.BlocksReady(blocks=blocks))
        case Handoff():
            return engine_pb2.TransferEvent(handoff=handoff_to_wire(event))
        case _:
            return engine_pb2.TransferEvent(failed=to_failure(event))


def transfer_event_from_wire(wire: engine_pb2.TransferEvent) -> TransferEvent:
    match wire.WhichOneof("event"):
        case "hello":
            hello = wire.hello
            return TransferHello(
                hello.agent_metadata,
                hello.incarnation,
                hello.pool_address,
                hello.block_bytes,
                hello.device,
                hello.memory,
                hello.blocks,
            )
        case "blocks":
            return tuple(_block_from_wire(block) for block in wire.blocks.blocks)
        case "handoff":
            return handoff_from_wire(wire.handoff)
        case "failed":
            return from_failure(wire.failed)
        case _:
            raise InvalidInput("event", "unset", "hello, blocks, handoff or failed")


def _block_from_wire(block: engine_pb2.ReadyBlock) -> ReadyBlock:
    name = block.chain_hash_low.to_bytes(CHAIN_HASH_LOW_BYTES, "little") if block.chain_hash_low else b""
    return ReadyBlock(block.index, block.block, block.tag, name, block.tokens)
