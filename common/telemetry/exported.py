"""What a part counts by itself, as metrics: read when somebody scrapes, so that counting costs the part nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Family:
    """
    Attributes:
        values: by the value of `label`; without a label the only one, under any name. Called from a scraper's thread.
        kind: counter or gauge.
    """

    name: str
    text: str
    values: Callable[[], Mapping[str, float]]
    label: str = ""
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] = CounterMetricFamily


class Exported(Collector):
    """To be registered.

    Args:
        labels: of the process or instance, by name; the same for all families.
    """

    def __init__(self, labels: Mapping[str, str], families: Sequence[Family]) -> None:
        self._labels, self._families = labels, families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            names, values = list(self._labels), list(self._labels.values())
            metric = family.kind(family.name, family.text, labels=[*names, family.label] if family.label else names)
            for key, value in family.values().items():
                metric.add_metric([*values, key] if family.label else values, value)
            yield metric


def counted(name: str, text: str, counters: object, *fields: str, label: str = "") -> Family:
    """A family of counters out of fields of `counters`, each told from the others by its name."""
    return Family(name, text, lambda: {field: getattr(counters, field) for field in fields}, label)
