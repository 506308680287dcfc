"""What a client gets when it is slower than the tokens."""

from common.rpc.inference_data import Delta, Usage
from services.scheduler.outbox import Outbox


async def test_usage_is_in_the_last_delta_whoever_was_waiting() -> None:
    outbox = Outbox(100)
    outbox.put(Delta("r", 0, token_ids=(1,)))
    outbox.put(Delta("r", 1, token_ids=(2,)))
    outbox.put(Delta("r", 0, token_ids=(3,), usage=Usage(1, 3)))
    outbox.close()
    taken = []
    while (delta := await outbox.take()) is not None:
        taken.append(delta)
    assert [(delta.choice, delta.token_ids) for delta in taken] == [(1, (2,)), (0, (1, 3))]
    assert [delta.usage is not None for delta in taken] == [False, True]
