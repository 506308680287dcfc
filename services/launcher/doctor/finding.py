"""What an examination found."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # it cannot work, or would lose or mix up data
    WARNING = "warning"  # it works, slower or with less room


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Attributes:
        id: stable name of the check.
        found: what is there.
        limit: what must be there.
        setting: what to change: a path in the chart's values, or ``node:`` and what an administrator of the node does.
    """

    id: str
    severity: Severity
    found: str
    limit: str
    setting: str


def error(id_: str, found: str, limit: str, setting: str) -> Finding:
    return Finding(id_, Severity.ERROR, found, limit, setting)


def warning(id_: str, found: str, limit: str, setting: str) -> Finding:
    return Finding(id_, Severity.WARNING, found, limit, setting)
