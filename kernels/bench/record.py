"""What a benchmark reports: one result a shape and backend, with the machine and the versions beside them."""

import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

PACKAGES = ("torch", "triton", "flashinfer-python", "sgl-deep-gemm", "tokenspeed-flashmla", "apache-tvm-ffi")


@dataclass(frozen=True)
class Limits:
    """What this machine reached in the same run: bytes/s, and FLOP/s in bf16 and FP8."""

    bytes_per_s: float
    bf16_flops: float
    fp8_flops: float


@dataclass(frozen=True)
class Work:
    """The least a call must do: bytes through memory, operations, and in which type."""

    bytes: float
    flops: float = 0.0
    fp8: bool = True

    def floor_us(self, limits: Limits) -> float:
        rate = limits.fp8_flops if self.fp8 else limits.bf16_flops
        return max(self.bytes / limits.bytes_per_s, self.flops / rate) * 1e6


@dataclass(frozen=True)
class Ratio:
    """Quartiles of our time over a library's, taken round by round."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Result:
    """One measurement. `backend` is "tandem" for what our launcher chooses, else the library called directly."""

    op: str
    backend: str
    shape: dict[str, int | str]
    us: float
    tflops: float
    gbps: float
    fraction_of_limit: float
    target_us: float | None = None
    baseline: dict[str, float] = field(default_factory=dict)  # library: us in the same run
    ratio: dict[str, Ratio] = field(default_factory=dict)  # library: how ours compares, where both ran in turns


def result(
    op: str,
    backend: str,
    shape: Mapping[str, int | str],
    us: float,
    work: Work,
    limits: Limits,
    *,
    target_us: float | None = None,
    baseline: dict[str, float] | None = None,
    ratio: dict[str, Ratio] | None = None,
) -> Result:
    return Result(
        op,
        backend,
        dict(shape),
        round(us, 2),
        round(work.flops / us / 1e6, 1),
        round(work.bytes / us / 1e3, 1),
        round(work.floor_us(limits) / us, 3),
        target_us,
        {name: round(value, 2) for name, value in (baseline or {}).items()},
        ratio or {},
    )


def machine() -> dict[str, str]:
    """The GPU, its driver, and its clocks and power at this moment, as nvidia-smi says."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"],
        capture_output=True,
        text=True,
        check=True,
    )
    values = [value.strip() for value in answer.stdout.strip().split(",")]
    return {**dict(zip(fields, values, strict=True)), "cuda": str(torch.version.cuda)}


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def write(
    path: Path,
    command: str,
    results: list[Result],
    limits: Limits,
    measured_on: dict[str, str],
    extra: dict[str, object],
) -> None:
    """Write a file of results; `measured_on` is from `machine`."""
    document = {
        "machine": measured_on,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "command": command,
        "limits": asdict(limits),
        "results": [asdict(r) for r in results],
        **extra,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
