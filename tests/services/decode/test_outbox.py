import pytest

from common.errors import Overloaded
from common.rpc.worker_data import StepBatch, WorkPreempted
from services.decode.outbox import Outbox


async def test_the_first_batch_tells_the_incarnation_and_the_rest_comes_in_order() -> None:
    outbox = Outbox("s0", 7, limit_batches=10)
    outbox.put(1, [WorkPreempted("a")])
    outbox.put(2, [WorkPreempted("b")])
    outbox.close()
    outbox.put(3, [WorkPreempted("late")])
    batches = [batch async for batch in outbox.batches()]
    assert batches == [StepBatch(7, 0), StepBatch(7, 1, (WorkPreempted("a"),)), StepBatch(7, 2, (WorkPreempted("b"),))]


async def test_a_reader_that_falls_behind_loses_its_stream() -> None:
    outbox = Outbox("s0", 7, limit_batches=3)
    for step in range(5):
        outbox.put(step, [WorkPreempted("a")])
    batches = outbox.batches()
    for _ in range(3):
        await anext(batches)
    with pytest.raises(Overloaded, match="s0 is 3 steps behind"):
        await anext(batches)
