"""A number that says where it comes from."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a figure came to be known."""

    DATASHEET = "datasheet"
    PUBLISHED = "published"  # somebody else measured it
    MEASURED = "measured"  # we measured it
    ASSUMED = "assumed"  # nobody measured it; the document says so wherever it is used


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in the unit its field's name carries, with its kind and source."""

    value: float
    kind: Kind
    source: str


OUR_H200 = "measured, 2 x H200, November 2026"


def datasheet(value: float, source: str) -> Figure:
    return Figure(value, Kind.DATASHEET, source)


def published(value: float, source: str) -> Figure:
    return Figure(value, Kind.PUBLISHED, source)


def measured(value: float, source: str = OUR_H200) -> Figure:
    return Figure(value, Kind.MEASURED, source)


def assumed(value: float, source: str) -> Figure:
    return Figure(value, Kind.ASSUMED, source)
