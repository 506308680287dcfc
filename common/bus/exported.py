"""What a connection to NATS counted, as metrics."""

from collections.abc import Mapping
from dataclasses import fields

from common.bus.connection import BusCounters
from common.telemetry.exported import Exported, counted

OUTCOMES = tuple(one.name for one in fields(BusCounters) if one.name != "disconnects")


def exported_bus(counters: BusCounters, labels: Mapping[str, str]) -> Exported:
    """
    Args:
        labels: of whoever has the connection, by name.
    """
    text = "Messages on NATS by what became of them"
    return Exported(
        labels,
        [
            counted("tandem_bus_messages", text, counters, *OUTCOMES, label="outcome"),
            counted("tandem_bus_disconnects", "Lost connections to NATS", counters, "disconnects"),
        ],
    )
