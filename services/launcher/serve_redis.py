"""Redis for trial, as a process of its own: ``python -m services.launcher.serve_redis --port N --directory D``.

Becomes Valkey, without persistence, on every address. The password is $REDIS_PASSWORD; it goes through a file that only
this user reads, since arguments are seen by everybody.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.launcher.embedded import valkey_binary
from services.launcher.serve_bundled import place_of, private_file


def main(argv: Sequence[str]) -> NoReturn:
    place = place_of("redis", argv)
    lines = ["bind * -::*", f"port {place.port}", f"dir {place.directory}", 'save ""', "appendonly no"]
    config = private_file(place.directory / "valkey.conf", [*lines, f'requirepass "{place.password}"'])
    binary = str(valkey_binary())
    os.execv(binary, [binary, str(config)])


if __name__ == "__main__":
    main(sys.argv[1:])
