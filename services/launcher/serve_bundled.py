"""What the bundled Redis and NATS have in common: where they stand, and a password that nobody else reads."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    port: int
    directory: Path
    password: str


def place_of(server: str, argv: Sequence[str]) -> ServerPlace:
    """Read arguments and environment; ends the process when the password is missing or not fit for a URL."""
    parser = argparse.ArgumentParser(prog=f"serve_{server}")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    given = parser.parse_args(argv)
    variable = f"{server.upper()}_PASSWORD"
    password = os.environ.get(variable, "")
    if not password or not password.isalnum():
        parser.error(f"{variable} must be set, to letters and digits")
    return ServerPlace(given.port, given.directory, password)


def private_file(path: Path, lines: Sequence[str]) -> Path:
    """Written anew, for this user alone."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path
