"""The process of a source under test; apart, so that it starts without torch."""

from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from common.transfer.agent import SourceAgent
from common.transfer.memory import host_region


def serve(pipe: Connection, path: Path, name: str) -> None:
    """Map the pool, let it be read, end on any message."""
    pool = np.memmap(path, dtype=np.int32, mode="r+")
    agent = SourceAgent(name, host_region(pool))
    pipe.send((agent.metadata, agent.pool.address))
    pipe.recv()
    agent.close()
