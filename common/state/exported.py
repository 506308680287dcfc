"""What the two ends of the prefix index counted, as metrics."""

from collections.abc import Mapping
from dataclasses import fields

from common.state.index_publisher import PublisherCounters
from common.state.prefix_index import LookupCounters
from common.telemetry.exported import Exported, Family, counted

OUTCOMES = tuple(one.name for one in fields(LookupCounters))


def exported_lookups(counters: LookupCounters, labels: Mapping[str, str]) -> Exported:
    """
    Args:
        labels: of who looks up, by name.
    """
    text = "Lookups in the prefix index by what became of them"
    return Exported(labels, [counted("tandem_prefix_index_lookups", text, counters, *OUTCOMES, label="outcome")])


def exported_publisher(counters: PublisherCounters, labels: Mapping[str, str]) -> Exported:
    """
    Args:
        labels: of whose cache it is, by name.
    """

    def repaired() -> Mapping[str, float]:
        return {"missing": counters.repaired_missing, "phantom": counters.repaired_phantom}

    return Exported(
        labels,
        [
            counted("tandem_prefix_index_changes", "Blocks that came or went, told to the index", counters, "written"),
            counted("tandem_prefix_index_failures", "Writes that Redis did not take", counters, "failures"),
            counted("tandem_prefix_index_repairs", "Comparisons of the whole with the cache", counters, "repairs"),
            Family("tandem_prefix_index_repaired_blocks", "Blocks that they put right", repaired, "kind"),
        ],
    )
