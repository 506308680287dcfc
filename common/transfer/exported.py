"""What a transfer reader counted, and its arena's books, as metrics."""

from collections.abc import Mapping
from dataclasses import fields

from prometheus_client.core import GaugeMetricFamily

from common.telemetry.exported import Exported, Family, counted
from common.transfer.reader import ReaderCounters, TransferReader

OUTCOMES = tuple(one.name for one in fields(ReaderCounters) if one.name != "landed_blocks")


def exported_reader(reader: TransferReader, labels: Mapping[str, str]) -> Exported:
    """
    Args:
        labels: of the instance, by name.
    """

    def slots() -> Mapping[str, float]:
        now = reader.slots()
        return {"free": now.free, "landing": now.landing, "draining": now.draining}

    return Exported(
        labels,
        [
            counted("tandem_transfers", "Transfers by how they ended", reader.counters, *OUTCOMES, label="outcome"),
            counted("tandem_landed_blocks", "Blocks read, found right and copied", reader.counters, "landed_blocks"),
            Family("tandem_landing_slots", "Slots of the landing arena", slots, "state", GaugeMetricFamily),
        ],
    )
