"""GPUs: as many, of such kind, with room for weights and latent. Pure."""

from collections.abc import Iterator

from common.config.place import parallel_of
from services.launcher.doctor.check_node import size
from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, error
from services.launcher.doctor.memory_need import RESERVED_BYTES, memory_need

CAPABILITY = 9.0  # Hopper: FP8 matrix products with scales by block, TMA
DRIVER = 580  # CUDA 13
_TAKEN_BYTES = 2 << 30  # what an idle GPU may already have given away


def check_gpus(facts: Facts) -> Iterator[Finding]:
    if not facts.on_gpu or facts.role == "scheduler":
        return
    role, gpus, parallel = facts.role, facts.node.gpus, parallel_of(facts.config, facts.role)
    ranks = parallel.ep // parallel.pods_per_group
    if len(gpus) < ranks:
        why = f" ({facts.node.gpu_error})" if facts.node.gpu_error else ""
        yield error("gpu-count", f"{len(gpus)} GPUs{why}", f"{ranks}, one a rank of this pod", f"{role}.gpusPerNode")
    for gpu in gpus:
        if gpu.mig:
            yield error("gpu-mig", f"GPU {gpu.index} is divided (MIG)", "whole GPUs", f"{role}.gpu.resource")
        if gpu.capability < CAPABILITY:
            found = f"GPU {gpu.index} is {gpu.product}, compute capability {gpu.capability}"
            yield error("gpu-product", found, f"{CAPABILITY} or later (H100, H200)", f"{role}.gpu.products")
    if len({gpu.product for gpu in gpus}) > 1:
        found = ", ".join(sorted({gpu.product for gpu in gpus}))
        yield error("gpu-mixed", found, "one product: the slowest would hold up every step", f"{role}.gpu.products")
    old = [gpu for gpu in gpus if gpu.driver < DRIVER]
    if old:
        yield error("gpu-driver", f"driver {old[0].driver}", f"{DRIVER} or later", "node: NVIDIA driver")
    yield from _memory(facts)


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.role == "scheduler" or not facts.node.gpus:
        return
    role, gpus = facts.role, facts.node.gpus
    least = min(gpus, key=lambda gpu: gpu.total_bytes)
    need = memory_need(facts.config, role, facts.model.config)
    if need is not None and need.total + RESERVED_BYTES > least.total_bytes:
        parts = f"{size(need.experts)} experts, {size(need.others)} other weights, {size(need.latent)} latent"
        fits_without_latent = need.experts + need.others + RESERVED_BYTES < least.total_bytes
        yield error(
            "gpu-memory",
            f"GPU {least.index} has {size(least.total_bytes)}",
            f"{size(need.total + RESERVED_BYTES)}: {parts}, {size(RESERVED_BYTES)} reserved",
            f"{role}.settings.blocks" if fits_without_latent else f"{role}.ep",
        )
    for gpu in gpus:
        if gpu.total_bytes - gpu.free_bytes > _TAKEN_BYTES:
            found = f"{size(gpu.total_bytes - gpu.free_bytes)} of GPU {gpu.index} are taken by another process"
            yield error("gpu-taken", found, "a GPU of its own", f"{role}.nodeSelector")
