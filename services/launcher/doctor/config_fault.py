"""A refused configuration as findings that name the file's fields."""

import re
from collections.abc import Iterator
from pathlib import Path

from common.errors import CheckpointError, ConfigError
from services.launcher.doctor.finding import Finding, error
from services.launcher.doctor.names import setting_of

_FIELD = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)(?: = |: )")


def config_faults(fault: ConfigError, file: Path) -> list[Finding]:
    """One finding a fault; what the file's own checks refuse is refused here in their words."""
    return list(_findings(fault, file))


def _findings(fault: ConfigError, file: Path) -> Iterator[Finding]:
    message = str(fault)
    faults = message.removeprefix(f"{file}: ")
    if isinstance(fault, CheckpointError):
        yield error("config", message, "a model directory that can be served", setting_of("model.path"))
    elif faults == message:
        yield error("config", message, "dotted.field=value of a field that is there", "--set")
    elif _FIELD.match(faults) is None:  # of the file as a whole
        yield error("config", message, "a cluster's file in YAML", "--config")
    else:
        for one in faults.split("; "):
            field = _FIELD.match(one)
            said, _, limit = one.partition(": ")
            setting = setting_of(field[1]) if field else "--config"
            yield error("config", said, limit or "a file that can be served", setting)
