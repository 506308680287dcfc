"""A source in a process of its own and a reader in this one, over real NIXL.

The source's pool is a file that both processes map, so that a test can see and rewrite it while the source is stopped.
"""

import copy
import multiprocessing
import os
import queue
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import TransferError
from common.kv.hashing import chain_hashes, root_hash
from common.kv.tags import tag
from common.request import GeneratedToken, Handoff, ReadyBlock, TransferHello
from common.transfer.landing import HostLanding
from common.transfer.memory import tensor_region
from common.transfer.reader import ReaderLimits, TransferReader
from common.transfer.target import TransferTarget
from kernels.block_tag_ref import block_hash
from tests.common.transfer.source_process import serve

PATIENCE_S = 30.0
HANDOFF = Handoff(GeneratedToken(position=7, token_id=3), draft_token_ids=(4,))


def _thread_state(thread: Path) -> str:
    """T is stopped, as proc(5) has it: the field after the name in parentheses."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def until(condition, what: str, within_s: float = PATIENCE_S) -> None:
    """Wait for a condition with a deadline."""
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s, f"{what}: not within {within_s} s"
        time.sleep(0.002)


class Source:
    """A source process over `blocks` blocks of random content."""

    def __init__(self, directory: Path, name: str, blocks: int, block_bytes: int, incarnation: int = 77) -> None:
        path = directory / f"{name}.pool"
        seed = sum(name.encode())
        np.random.default_rng(seed).integers(-(2**31), 2**31, blocks * block_bytes // 4, dtype=np.int32).tofile(path)
        self.name = name
        self.blocks = np.memmap(path, dtype=np.int32, mode="r+").reshape(blocks, -1)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, path, f"{name}-{os.getpid()}"), daemon=True)
        self.process.start()
        assert self._pipe.poll(PATIENCE_S)
        metadata, address = self._pipe.recv()
        self.hello = TransferHello(metadata, incarnation, address, block_bytes, 0, "DRAM", 0)

    def cut(self, block_bytes: int) -> "Source":
        """The same process and memory, seen as blocks of another size."""
        other = copy.copy(self)
        other.blocks = self.blocks.reshape(-1, block_bytes // 4)
        other.hello = replace(self.hello, block_bytes=block_bytes)
        return other

    def ready(self, indices: range, blocks: list[int], hashes: list[bytes]) -> list[ReadyBlock]:
        """Announcements of pool blocks as the given part of a sequence, with true tags of their content now."""
        announced = []
        for index in indices:
            block = blocks[index]
            content = block_hash(torch.from_numpy(self.blocks[block]))
            chain_hash = hashes[index] if index < len(hashes) else b""
            announced.append(ReadyBlock(index, block, tag(content, chain_hash, self.hello.incarnation), chain_hash, 64))
        return announced

    def stop(self) -> None:
        """Returns once every thread stands still: until then one could answer a read."""
        os.kill(self.process.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        until(lambda: all(_thread_state(thread) == "T" for thread in threads.iterdir()), "stopped threads")

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)

    def close(self) -> None:
        if self.process.is_alive():
            self.resume()
            self._pipe.send("end")
            self.process.join(PATIENCE_S)
        self.process.kill()
        self.process.join()


class Outcomes:
    """Records how transfers end."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()

    def landed(self, work_id: str, handoff: Handoff, exposed_transfer_s: float) -> None:
        assert handoff == HANDOFF
        assert exposed_transfer_s >= 0
        self._queue.put(("landed", work_id, exposed_transfer_s))

    def failed(self, work_id: str, error: TransferError) -> None:
        self._queue.put(("failed", work_id, error))

    def stopped(self, work_id: str) -> None:
        self._queue.put(("stopped", work_id, None))

    def next(self, within_s: float = PATIENCE_S) -> tuple[str, str, Any]:
        return self._queue.get(timeout=within_s)

    @property
    def empty(self) -> bool:
        return self._queue.empty()


class Destination:
    """A reader with an arena and a pool of its own."""

    def __init__(
        self, name: str, slots: int, blocks: int, block_bytes: int, limits: ReaderLimits | None = None
    ) -> None:
        self.arena = torch.zeros(slots + 1, block_bytes // 4, dtype=torch.int32)
        self.pool = torch.zeros(blocks, block_bytes // 4, dtype=torch.int32)
        self.outcomes = Outcomes()
        self.reader = TransferReader(
            f"{name}-{os.getpid()}",
            tensor_region(self.arena),
            block_bytes,
            HostLanding(self.arena, self.pool, mtp_slot_bytes=0),
            self.outcomes,
            limits or ReaderLimits(),
        )

    def warm(self, source: Source) -> None:
        """Connect and wait until the connection stands."""
        self.reader.connect(source.name, source.hello)
        key = f"{source.name}@{source.hello.incarnation:x}"
        until(lambda: self.reader._peers.agent(key) is not None, "connection")

    def close(self) -> None:
        self.reader.close()
        self.reader._arena.check()


def names(seed: int, blocks: int) -> list[bytes]:
    """Chain hashes of some sequence of `blocks` full blocks."""
    return chain_hashes(root_hash("test", 1, "int32", str(seed)), range(blocks), 1)


def target(
    source: Source,
    work_id: str,
    destination_blocks: list[int],
    hashes: list[bytes],
    within_s: float = PATIENCE_S,
    first_block: int = 0,
) -> TransferTarget:
    """A transfer of as many blocks as there are destinations."""
    hello = replace(source.hello, blocks=len(destination_blocks))
    deadline_s = time.monotonic() + within_s
    blocks = tuple(destination_blocks)
    return TransferTarget(work_id, source.name, hello, first_block, blocks, tuple(hashes), deadline_s)
