"""Nothing is counted for nobody: every field of every part's counters is a series, with its value of now."""

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from common.bus.connection import BusCounters
from common.bus.exported import exported_bus
from common.kv.landing_arena import SlotCounts
from common.state.exported import exported_lookups, exported_publisher
from common.state.index_publisher import PublisherCounters
from common.state.prefix_index import LookupCounters
from common.telemetry.exported import Exported
from common.transfer.exported import exported_reader
from common.transfer.reader import ReaderCounters

LABELS = {"model": "tiny", "role": "decode"}


def reader_of(counters: ReaderCounters, labels: dict[str, str]) -> Exported:
    reader = SimpleNamespace(counters=counters, slots=lambda: SlotCounts(free=5, landing=2, draining=1, total=8))
    return exported_reader(reader, labels)  # type: ignore[arg-type]


EXPORTS = {
    BusCounters: exported_bus,
    LookupCounters: exported_lookups,
    PublisherCounters: exported_publisher,
    ReaderCounters: reader_of,
}


@pytest.mark.parametrize(("kind", "export"), EXPORTS.items(), ids=lambda one: one.__name__)
def test_every_counter_is_exported(kind: type, export: Callable[[object, dict[str, str]], Exported]) -> None:
    counters, registry = kind(), CollectorRegistry()
    registry.register(export(counters, LABELS))
    names = [one.name for one in fields(kind)]
    before = samples(registry)
    assert set(before.values()) == {0.0}  # every series is there before anything was counted
    for number, name in enumerate(names):
        setattr(counters, name, 1000 + number)
    assert sorted(samples(registry).values()) == [1000.0 + number for number in range(len(names))]


def test_series_carry_the_labels_of_whose_they_are() -> None:
    registry = CollectorRegistry()
    registry.register(reader_of(ReaderCounters(landed=3, mismatched=1, landed_blocks=40), LABELS))
    registry.register(exported_publisher(PublisherCounters(repaired_phantom=2), LABELS))
    for name, value, more in (
        ("tandem_transfers_total", 3, {"outcome": "landed"}),
        ("tandem_transfers_total", 1, {"outcome": "mismatched"}),
        ("tandem_landed_blocks_total", 40, {}),
        ("tandem_landing_slots", 5, {"state": "free"}),
        ("tandem_landing_slots", 2, {"state": "landing"}),
        ("tandem_landing_slots", 1, {"state": "draining"}),
        ("tandem_prefix_index_repaired_blocks_total", 2, {"kind": "phantom"}),
    ):
        assert registry.get_sample_value(name, {**LABELS, **more}) == value, (name, more)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Of counters, by name and labels."""
    found = {}
    for family in registry.collect():
        if family.type == "counter":
            assert family.name.startswith("tandem_")
            found |= {(sample.name, str(sample.labels)): sample.value for sample in family.samples}
    return found
