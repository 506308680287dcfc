"""GPUs and the nodes they sit in, as data. Adding one is one entry of `HARDWARE`."""

from dataclasses import dataclass, fields

from common.errors import InvalidInput
from loadgen.planner.figure import Figure, assumed, datasheet, measured, published

_TB = 1e12
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of node. FLOP rates are dense; link bandwidths are one way and per GPU.

    `*_achieved` is what real kernels reach, the field without it what the datasheet promises. Fitted efficiencies
    are fractions of the datasheet FLOP rate, and of the *achieved* bandwidths, so that a curve fitted on one card
    carries over to another.
    """

    name: str
    gpus_per_node: int
    nics_per_node: int
    nvlink_domain_gpus: int
    sms: int
    fp8_flops_per_s: Figure
    bf16_flops_per_s: Figure
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    memory_achieved_bytes_per_s: Figure
    nvlink_bytes_per_s: Figure
    nvlink_achieved_bytes_per_s: Figure
    network_bytes_per_s: Figure
    network_achieved_bytes_per_s: Figure
    gpu_hour_usd: Figure
    fp4_flops_per_s: Figure | None = None

    def flops_per_s(self, precision: str) -> float:
        """Datasheet dense rate for `fp8` or `bf16` operands."""
        if precision == "fp8":
            return self.fp8_flops_per_s.value
        if precision == "bf16":
            return self.bf16_flops_per_s.value
        raise InvalidInput("precision", precision, "one of fp8, bf16")

    def figures(self) -> dict[str, Figure]:
        """Every sourced figure by field name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Figure)}


_H100_SHEET = "NVIDIA H100 Tensor Core GPU datasheet, SXM5, dense"
_H200_SHEET = "NVIDIA H200 Tensor Core GPU datasheet, SXM5, dense"
_GB200_SHEET = "NVIDIA GB200 NVL72 datasheet, per GPU, dense"
_CX7 = "ConnectX-7, 400 Gb/s"
_RENT = "a round rental price; give --gpu-hour-usd for yours"

_HBM3 = published(3.0 * _TB, "FlashMLA README, memory-bound decode on H800 SXM5; the H100 has the same memory")
_SHMEM_PUT = published(47 * _GB, "shmem_put_bw over CX7 (DeepEP #155)")

HARDWARE: dict[str, Hardware] = {
    "h100": Hardware(
        name="h100",
        gpus_per_node=8,
        nics_per_node=8,
        nvlink_domain_gpus=8,
        sms=132,
        fp8_flops_per_s=datasheet(1979e12, _H100_SHEET),
        bf16_flops_per_s=datasheet(989e12, _H100_SHEET),
        memory_bytes=datasheet(80 * _GB, _H100_SHEET),
        memory_bytes_per_s=datasheet(3.35 * _TB, _H100_SHEET),
        memory_achieved_bytes_per_s=_HBM3,
        nvlink_bytes_per_s=datasheet(450 * _GB, _H100_SHEET),
        nvlink_achieved_bytes_per_s=published(380 * _GB, "DeepEP maintainers, an upper bound (DeepEP #16)"),
        network_bytes_per_s=datasheet(50 * _GB, _CX7),
        network_achieved_bytes_per_s=_SHMEM_PUT,
        gpu_hour_usd=assumed(2.0, _RENT),
    ),
    "h800": Hardware(
        name="h800",
        gpus_per_node=8,
        nics_per_node=8,
        nvlink_domain_gpus=8,
        sms=132,
        fp8_flops_per_s=datasheet(1979e12, "as H100 SXM5; only links differ"),
        bf16_flops_per_s=datasheet(989e12, "as H100 SXM5; only links differ"),
        memory_bytes=datasheet(80 * _GB, "as H100 SXM5"),
        memory_bytes_per_s=datasheet(3.35 * _TB, "as H100 SXM5"),
        memory_achieved_bytes_per_s=_HBM3,
        nvlink_bytes_per_s=datasheet(200 * _GB, "NVIDIA H800: NVLink 400 GB/s both ways"),
        nvlink_achieved_bytes_per_s=published(160 * _GB, "DeepEP docs/legacy.md"),
        network_bytes_per_s=datasheet(50 * _GB, _CX7),
        network_achieved_bytes_per_s=_SHMEM_PUT,
        gpu_hour_usd=published(2.0, "DeepSeek open-infra-index, day 6: leasing cost taken there"),
    ),
    "h200": Hardware(
        name="h200",
        gpus_per_node=8,
        nics_per_node=8,
        nvlink_domain_gpus=8,
        sms=132,
        fp8_flops_per_s=datasheet(1979e12, _H200_SHEET),
        bf16_flops_per_s=datasheet(989e12, _H200_SHEET),
        memory_bytes=datasheet(141 * _GB, _H200_SHEET),
        memory_bytes_per_s=datasheet(4.8 * _TB, _H200_SHEET),
        memory_achieved_bytes_per_s=measured(4.28 * _TB),
        nvlink_bytes_per_s=datasheet(450 * _GB, _H200_SHEET),
        nvlink_achieved_bytes_per_s=measured(390 * _GB),
        network_bytes_per_s=datasheet(50 * _GB, _CX7),
        network_achieved_bytes_per_s=_SHMEM_PUT,
        gpu_hour_usd=assumed(2.5, _RENT),
    ),
    "gb200": Hardware(
        name="gb200",
        gpus_per_node=4,
        nics_per_node=4,
        nvlink_domain_gpus=72,
        sms=148,
        fp8_flops_per_s=datasheet(5000e12, _GB200_SHEET),
        bf16_flops_per_s=datasheet(2500e12, _GB200_SHEET),
        fp4_flops_per_s=datasheet(10000e12, _GB200_SHEET),
        memory_bytes=datasheet(186 * _GB, _GB200_SHEET),
        memory_bytes_per_s=datasheet(8.0 * _TB, _GB200_SHEET),
        memory_achieved_bytes_per_s=assumed(7.1 * _TB, "the H200's measured share of its datasheet, 0.89"),
        nvlink_bytes_per_s=datasheet(900 * _GB, _GB200_SHEET),
        nvlink_achieved_bytes_per_s=published(726 * _GB, "DeepEP V2 README, SM100 EP8 dispatch"),
        network_bytes_per_s=datasheet(50 * _GB, _CX7),
        network_achieved_bytes_per_s=_SHMEM_PUT,
        gpu_hour_usd=assumed(4.0, _RENT),
    ),
}


def hardware(name: str) -> Hardware:
    """The entry called `name`; `InvalidInput` names the known ones."""
    try:
        return HARDWARE[name.lower()]
    except KeyError:
        raise InvalidInput("hardware", name, f"one of {', '.join(sorted(HARDWARE))}") from None
