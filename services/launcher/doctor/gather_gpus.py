"""GPUs as nvidia-smi tells them, which comes with the container runtime."""

import csv
import io
import subprocess

from services.launcher.doctor.facts import Gpu

_FIELDS = ("index", "name", "memory.total", "memory.free", "driver_version", "compute_cap", "mig.mode.current")
_TIMEOUT_S = 60.0
_MIB = 1 << 20


def gather_gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, or none and why."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return (), "no nvidia-smi: the pod has no GPU"
    except subprocess.TimeoutExpired:
        return (), f"nvidia-smi did not answer within {_TIMEOUT_S:g} s"
    if done.returncode != 0:
        return (), f"nvidia-smi: {(done.stderr or done.stdout).strip()}"
    return parse_gpus(done.stdout), ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return tuple(
        Gpu(
            index=int(index),
            product=product,
            total_bytes=int(total) * _MIB,
            free_bytes=int(free) * _MIB,
            capability=float(capability),
            driver=int(driver.split(".")[0]),
            mig=mig == "Enabled",
        )
        for index, product, total, free, driver, capability, mig in rows
    )
