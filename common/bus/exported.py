"""What a connection to NATS counted, as metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from common.bus.connection import BusCounters

OUTCOMES = tuple(one.name for one in fields(BusCounters) if one.name != "disconnects")


class ExportedBus(Collector):
    """To be registered; reads the counters when it is scraped.

    Args:
        labels: of whoever has the connection, by name.
    """

    def __init__(self, counters: BusCounters, labels: Mapping[str, str]) -> None:
        self._counters, self._labels = counters, labels

    def collect(self) -> Iterable[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        messages = CounterMetricFamily(
            "tandem_bus_messages", "Messages on NATS by what became of them", labels=[*names, "outcome"]
        )
        for outcome in OUTCOMES:
            messages.add_metric([*values, outcome], getattr(self._counters, outcome))
        disconnects = CounterMetricFamily("tandem_bus_disconnects", "Lost connections to NATS", labels=names)
        disconnects.add_metric(values, self._counters.disconnects)
        return [messages, disconnects]
