"""One setting, two names: a field of the cluster's file, and the value of the chart that writes it."""

import re
from collections.abc import Iterable, Iterator

# (field, value); the first line that fits says the other name.
_PAIRS = (
    ("{pool}.parallel.{shape}", "{pool}.{shape}"),
    ("{pool}.parallel.instances_per_pod", "{pool}.gpusPerNode"),
    ("{pool}.worker.host", "{pool}.worker"),
    ("{pool}.worker.{name}", "{pool}.worker.{name}"),
    ("{part}.{name}", "{part}.settings.{name}"),
    ("model.path", "model.store.directory"),
    ("model.path", "model.download.enabled"),
    ("model.dtype", "layout.dtype"),
    ("model.{name}", "model.{name}"),
    ("block_tokens", "layout.blockTokens"),
    ("draft_tokens", "layout.draftTokens"),
    ("context_tokens", "contextTokens"),
    ("{server}.url", "{server}.external.urlSecret"),
    ("{server}.url", "{server}.mode"),
    ("{server}.{name}", "{server}"),
)
_WORDS = {
    "pool": "prefill|decode",
    "part": "prefill|decode|scheduler|autoscaler",
    "server": "redis|nats",
    "shape": "ep|tp|groups",
    "name": r"\w+",
}


def setting_of(field: str) -> str:
    """The chart's value for a dotted field of the file; the field itself when the chart has none."""
    return next(_translated(field, _PAIRS), field)


def field_of(setting: str) -> str:
    """The file's dotted field that a value of the chart sets; empty when the file has none."""
    return next(_translated(setting, [(value, field) for field, value in _PAIRS]), "")


def _translated(name: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for known, other in pairs:
        found = re.fullmatch(_pattern(known), name)
        if found is not None and set(re.findall(r"\{(\w+)\}", other)) <= found.groupdict().keys():
            yield other.format(**found.groupdict())


def _pattern(template: str) -> str:
    return re.sub(r"\\\{(\w+)\\\}", lambda word: f"(?P<{word[1]}>{_WORDS[word[1]]})", re.escape(template))
