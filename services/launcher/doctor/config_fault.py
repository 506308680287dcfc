"""A refused configuration as findings that name the chart's values."""

import re
from collections.abc import Iterator

from common.errors import ConfigError
from services.launcher.doctor.finding import Finding, error

_FIELD = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)(?: = |: )")
_VALUES = (
    (r"(prefill|decode)\.parallel\.(ep|tp|groups)", r"\1.\2"),
    (r"(prefill|decode)\.parallel\.instances_per_pod", r"\1.gpusPerNode"),
    (r"(prefill|decode)\.worker\.host", r"\1.worker"),
    (r"(prefill|decode)\.worker\.(\w+)", r"\1.worker.\2"),
    (r"(prefill|decode|scheduler|autoscaler)\.(\w+)", r"\1.settings.\2"),
    (r"model\.path", "model.store.directory"),
    (r"model\.dtype", "layout.dtype"),
    (r"model\.(\w+)", r"model.\1"),
    (r"block_tokens", "layout.blockTokens"),
    (r"draft_tokens", "layout.draftTokens"),
    (r"context_tokens", "contextTokens"),
    (r"(redis|nats)\.url", r"\1.external.urlSecret"),
    (r"(redis|nats)\.(\w+)", r"\1"),
)


def config_faults(fault: ConfigError) -> list[Finding]:
    """One finding a fault; what the file's own checks refuse is refused here in their words."""
    return list(_findings(str(fault)))


def setting_of(field: str) -> str:
    """The chart's value for a dotted field of the file; the field itself when the chart has none."""
    for pattern, value in _VALUES:
        if re.fullmatch(pattern, field):
            return re.sub(pattern, value, field)
    return field


def _findings(message: str) -> Iterator[Finding]:
    _, _, faults = message.partition(": ")
    for fault in (faults or message).split("; "):
        field = _FIELD.match(fault)
        said, _, limit = fault.partition(": ")
        yield error("config", said, limit or "a file that can be served", setting_of(field[1]) if field else "model")
