"""A decode instance does not go on without what it cannot do without."""

import pytest
import torch

from common.errors import InternalError
from common.transfer.landing import HostLanding
from common.transfer.memory import tensor_region
from common.transfer.reader import ReaderLimits, TransferReader
from services.decode.rank import watch

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Broken:
    """A transfer's outcome that cannot be told: whatever breaks on the reader's thread ends it."""

    def stopped(self, _work_id: str) -> None:
        raise KeyError("ours")


async def test_a_reader_that_ended_ends_its_instance() -> None:
    memory = torch.zeros(2, 1024)
    landing = HostLanding(memory, memory.clone(), 0)
    reader = TransferReader("r", tensor_region(memory), 4096, landing, Broken(), ReaderLimits())  # type: ignore[arg-type]
    assert reader.alive
    reader.abort("w")
    with pytest.raises(InternalError, match="the transfer reader ended"):
        await watch(reader)
    reader.close()
