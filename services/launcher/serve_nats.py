"""NATS for trial, as a process of its own: ``python -m services.launcher.serve_nats --port N --directory D``.

Becomes a NATS server without JetStream on every address, for the user `tandem` with the password $NATS_PASSWORD.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.launcher.embedded import nats_binary
from services.launcher.serve_bundled import place_of, private_file


def main(argv: Sequence[str]) -> NoReturn:
    place = place_of("nats", argv)
    user = f'authorization {{ user: "tandem", password: "{place.password}" }}'
    config = private_file(place.directory / "nats.conf", [f"port: {place.port}", user])
    binary = str(nats_binary())
    os.execv(binary, [binary, "--config", str(config)])


if __name__ == "__main__":
    main(sys.argv[1:])
