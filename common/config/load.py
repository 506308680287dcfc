"""From a YAML file and explicit ``field=value`` settings to a checked ClusterConfig.

A value that is ``${NAME}`` as a whole is taken from the environment variable NAME, so that one file serves pods with
different addresses and holds no password.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from common.config.checkpoint import check_checkpoint
from common.config.cluster import ClusterConfig
from common.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_cluster(path: Path, settings: Iterable[str] = ()) -> ClusterConfig:
    """Read the file, apply ``dotted.field=value`` settings over it, and check everything that the file can tell.

    A relative ``model.path`` is taken from the file's own directory.

    Raises:
        ConfigError: names file, field, value and limit; all faults at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text in UTF-8: {error}") from error
    document = _yaml(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: holds {type(document).__name__}, not a mapping of fields")
    for setting in settings:
        _apply(document, setting)
    document = with_environment(document, os.environ, str(path))
    config = parse_cluster(document, str(path))
    model_path = (path.parent / config.model.path).resolve()
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model_path)})})
    check_checkpoint(config, str(path))
    return config


def with_environment(document: dict[str, Any], environment: Mapping[str, str], source: str) -> dict[str, Any]:
    """The document with every whole-value ``${NAME}`` replaced; text around a reference leaves it as it is.

    Raises:
        ConfigError: names field and variable of each reference to one that is not set or is empty.
    """
    faults: list[str] = []

    def resolved(value: Any, field: str) -> Any:  # noqa: ANN401
        if isinstance(value, dict):
            return {key: resolved(below, f"{field}.{key}" if field else str(key)) for key, below in value.items()}
        if isinstance(value, list):
            return [resolved(below, f"{field}.{i}") for i, below in enumerate(value)]
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            return value
        given = environment.get(reference[1], "")
        if not given:
            faults.append(f"{field} = {value}: the environment variable {reference[1]} is not set")
        return given

    whole = resolved(document, "")
    if faults:
        raise ConfigError(f"{source}: {'; '.join(faults)}")
    return dict(whole)


def parse_cluster(document: dict[str, Any], source: str) -> ClusterConfig:
    """Check a document that is already in memory; `source` names it in errors."""
    try:
        return ClusterConfig.model_validate(document)
    except ValidationError as error:
        faults = "; ".join(_fault(dict(fault)) for fault in error.errors())
        raise ConfigError(f"{source}: {faults}") from error


def dump_cluster(config: ClusterConfig) -> str:
    """The whole configuration as YAML, defaults written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _apply(document: dict[str, Any], setting: str) -> None:
    dotted, equals, text = setting.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"setting {setting!r}: must be dotted.field=value")
    *parents, leaf = dotted.split(".")
    target = document
    for name in parents:
        below = target.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"setting {setting!r}: {name} is a value, not a section")
        target = below
    target[leaf] = _yaml(text, f"setting {setting!r}")


def _yaml(text: str, source: str) -> Any:  # noqa: ANN401
    try:
        return yaml.load(text, _OnceLoader)
    except _GivenTwice as error:
        raise ConfigError(f"{source}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from error


class _GivenTwice(Exception):
    pass


class _OnceLoader(yaml.SafeLoader):
    """YAML lets the last of equal keys win without a word; whoever wrote the others would not know."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401
        node = super().compose_mapping_node(anchor)  # as it is written: nothing is merged into it yet
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise _GivenTwice(f"the key {key.value} is given twice, on lines {lines[key.value]} and {line}")
                lines[key.value] = line
        return node


def _fault(fault: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{field}: {message}" if field else message
    if fault["type"] == "extra_forbidden":
        return f"{field}: no such field"
    if fault["type"] == "missing":
        return f"{field}: must be given"
    return f"{field} = {fault['input']!r}: {message[0].lower()}{message[1:]}"
