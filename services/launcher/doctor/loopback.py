"""One read with NIXL from this process to itself, every byte compared: ``python -m ...loopback DEVICE BYTES``.

In a process of its own, since a broken RDMA setup may end the process. Prints ``ok`` or what went wrong.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common.errors import TransferError
from services.launcher.doctor.facts import Loopback

if TYPE_CHECKING:
    from common.transfer.memory import MemoryRegion

LENGTH_BYTES = 8 << 20
_READ_TIMEOUT_S = 20.0
_PROCESS_TIMEOUT_S = 120.0
_NIC_TRANSPORTS = "rc,cuda_copy"  # no shared memory and no NVLink, so that bytes pass the NIC


def gather_loopback(device: str, *, through_nic: bool, length_bytes: int = LENGTH_BYTES) -> Loopback:
    environment = {**os.environ, **({"UCX_TLS": _NIC_TRANSPORTS} if through_nic else {})}
    command = [sys.executable, "-m", "services.launcher.doctor.loopback", device, str(length_bytes)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROCESS_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return Loopback(device, length_bytes, f"did not end within {_PROCESS_TIMEOUT_S:g} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines and lines[-1] == "ok":
        return Loopback(device, length_bytes)
    words = lines or done.stderr.strip().splitlines() or ["no word"]
    return Loopback(device, length_bytes, f"{words[-1]} (code {done.returncode})")


def read_back(device: str, length_bytes: int) -> None:
    """
    Raises:
        TransferError: the read failed, did not end in time, or brought other bytes.
    """
    from common.transfer.agent import PeerAgent, Segment, SourceAgent

    source, target, regions = _memory(device, length_bytes)
    pool, memory = regions
    agent = SourceAgent("doctor-source", pool)
    reader = PeerAgent("doctor-reader", memory, agent.metadata, pool.kind, pool.device)
    read = reader.read([Segment(memory.address, pool.address, length_bytes)])
    give_up_s = time.monotonic() + _READ_TIMEOUT_S
    while not read.poll():
        if time.monotonic() > give_up_s:
            raise TransferError(f"no end within {_READ_TIMEOUT_S:g} s")
        time.sleep(0.001)
    differing = int((source != target).sum())
    reader.close()
    agent.close()
    if differing:
        raise TransferError(f"{differing} of {length_bytes} bytes differ")


def _memory(device: str, length_bytes: int) -> "tuple[Any, Any, tuple[MemoryRegion, MemoryRegion]]":
    """Source with a pattern and target of zeros."""
    from common.transfer.memory import host_region, tensor_region

    if device == "cpu":
        import numpy as np

        source = np.arange(length_bytes, dtype=np.uint32).view(np.uint8)[:length_bytes].copy()
        target = np.zeros(length_bytes, dtype=np.uint8)
        return source, target, (host_region(source), host_region(target))
    import torch

    on_gpu = torch.arange(length_bytes, device=device).to(torch.uint8)
    empty = torch.zeros(length_bytes, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    return on_gpu, empty, (tensor_region(on_gpu), tensor_region(empty))


def main(argv: Sequence[str]) -> int:
    try:
        read_back(argv[0], int(argv[1]))
    except TransferError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write("ok\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # unloading UCX takes seconds
