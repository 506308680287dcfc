"""What an examination found."""

from dataclasses import dataclass
from enum import StrEnum

from services.launcher.doctor.names import field_of


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
        setting: what to change: a path in the chart's values, an option of the doctor, or ``node:`` and what an
            administrator of the node does.
    """

    id: str
    severity: Severity
    found: str
    limit: str
    setting: str

    @property
    def field(self) -> str:
        """The file's field that `setting` sets; empty when the file has none."""
        return field_of(self.setting)

    @property
    def change(self) -> str:
        """What to change, for whoever has the file and for whoever has the chart."""
        if self.setting.startswith(("--", "node:")) or self.field == self.setting:
            return self.setting
        return f"{self.field} (chart: {self.setting})" if self.field else f"chart: {self.setting}"


def error(id_: str, found: str, limit: str, setting: str) -> Finding:
    return Finding(id_, Severity.ERROR, found, limit, setting)


def warning(id_: str, found: str, limit: str, setting: str) -> Finding:
    return Finding(id_, Severity.WARNING, found, limit, setting)
