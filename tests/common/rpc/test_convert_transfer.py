import pytest

from common.errors import InvalidInput, LeaseLost
from common.kv.tags import tag
from common.request import Compatibility, FinishReason, GeneratedToken, Handoff, ReadyBlock, TransferHello
from common.rpc.convert_transfer import (
    TransferAbort,
    TransferEvent,
    TransferMessage,
    TransferOpen,
    TransferRelease,
    transfer_event_from_wire,
    transfer_event_to_wire,
    transfer_message_from_wire,
    transfer_message_to_wire,
)
from protos import engine_pb2

COMPATIBILITY = Compatibility("f", "c", "float32", 64, 5, 80, 1)


@pytest.mark.parametrize(
    "message",
    [TransferOpen("w", "decode-0-0", 2**62 + 1, COMPATIBILITY, 3), TransferRelease(), TransferAbort("too slow")],
)
def test_messages_come_back_equal(message: TransferMessage) -> None:
    wire = engine_pb2.TransferRequest.FromString(transfer_message_to_wire(message).SerializeToString())
    assert transfer_message_from_wire(wire) == message


@pytest.mark.parametrize(
    "event",
    [
        TransferHello(b"\x00\xff", 2**62 + 1, 2**47 + 5, 4_571_136, 3, "VRAM", 9),
        (ReadyBlock(0, 7, 2**64 - 1, b"12345678", 64), ReadyBlock(1, 8, 0, b"", 5)),
        Handoff(GeneratedToken(70, 3), (4, 5), FinishReason.STOP),
    ],
)
def test_events_come_back_equal(event: TransferEvent) -> None:
    wire = engine_pb2.TransferEvent.FromString(transfer_event_to_wire(event).SerializeToString())
    assert transfer_event_from_wire(wire) == event


def test_a_chain_hash_is_cut_to_what_tags_bind() -> None:
    name = bytes(range(16))
    (block,) = transfer_event_from_wire(transfer_event_to_wire((ReadyBlock(0, 1, 2, name, 64),)))  # type: ignore[misc]
    assert tag(5, block.chain_hash, 6) == tag(5, name, 6)


def test_a_failure_comes_back_as_the_error_it_was() -> None:
    error = transfer_event_from_wire(transfer_event_to_wire(LeaseLost("expired")))
    assert isinstance(error, LeaseLost)
    assert str(error) == "expired"


def test_empty_messages_are_refused() -> None:
    with pytest.raises(InvalidInput):
        transfer_message_from_wire(engine_pb2.TransferRequest())
    with pytest.raises(InvalidInput):
        transfer_event_from_wire(engine_pb2.TransferEvent())
