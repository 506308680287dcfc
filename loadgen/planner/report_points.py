"""The reference report's numbers, and which of them the fit may see.

Report: "Lower latency and higher throughput with multi-node DeepSeek deployment", Perplexity, 18 April 2025. One
layer on H100, TP1, 128 requests a GPU, query 2, 5,000 cached tokens. Five of the eleven numbers are fitted.
"""

from dataclasses import dataclass

REPORT = "the reference report, April 2025"
BATCH, QUERY, CACHED = 128, 2, 5000
ACCEPTANCE, DRAFTS = 0.6, 1
EPS, TPS = (8, 16, 32, 64, 128), (1, 2, 4, 8)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
GAIN_BATCHES = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class ReportPoint:
    """One number of the report: microseconds, or a ratio."""

    key: str
    what: str
    value: float
    fit: bool
    unit: str = "us"


REPORT_POINTS = (
    ReportPoint("ep8_total", "EP8, one layer", 1802, True),
    ReportPoint("none_total", "EP128 without overlap, one layer", 2667, False),
    ReportPoint("overlap_total", "EP128 with dispatch overlap, one layer", 2651, False),
    ReportPoint("dual_total", "EP128 with two microbatches, one layer", 1896, False),
    ReportPoint("none_dispatch", "dispatch without overlap", 593, True),
    ReportPoint("dual_dispatch", "dispatch with two microbatches", 367, True),
    ReportPoint("none_combine", "combine without overlap", 1012, True),
    ReportPoint("dual_combine", "combine with two microbatches", 237, False),
    ReportPoint("ep8_grouped", "GroupGEMM at EP8", 555, False),
    ReportPoint("dual_grouped", "GroupGEMM at EP128 with two microbatches", 270, True),
    ReportPoint("speedup", "EP128 over one node at equal output speed, up to", 5.0, False, "x"),
)
# What follows from the report's sentences by subtraction; compared, never fitted and never a target.
DERIVED_POINTS = (
    ReportPoint("none_grouped", "GroupGEMM at EP128 without overlap (2667 - 593 - 1012 - 856)", 206, False),
    ReportPoint("ep8_exchange", "dispatch and combine at EP8 (367 + 237 - 213)", 391, False),
    ReportPoint("other", "everything but GroupGEMM, dispatch, combine (1802 - 555 - 391)", 856, False),
    ReportPoint("gemm_growth", "GEMM growth by two microbatches", 95, False),
    ReportPoint("overlap_saves", "saved by dispatch overlap", 16, False),
)
