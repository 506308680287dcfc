"""Which version of every package an image installs: ``python -m tests.helm.resolve_images`` writes constraints-*.txt.

Versions that the files have stay as long as pyproject.toml's bounds allow them; ``--upgrade`` takes the newest.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.helm.fetch_tools import fetch_uv

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("cpu", "gpu")
_PLACE = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:"]


def resolve(image: str, file: Path, options: Sequence[str] = ()) -> None:
    """Write `file` anew out of the extra of the image's name; nothing but metadata is downloaded.

    Raises:
        CalledProcessError: no versions satisfy the bounds, or one that is named does not exist.
    """
    uv = str(fetch_uv(ROOT / ".helm-tools"))
    command = [uv, "pip", "compile", "--quiet", "pyproject.toml", "--extra", image, *_PLACE, "--no-annotate", *options]
    subprocess.run(
        [*command, "--custom-compile-command", "make constraints", "--output-file", str(file)], check=True, cwd=ROOT
    )


if __name__ == "__main__":
    for image in IMAGES:
        resolve(image, ROOT / f"constraints-{image}.txt", sys.argv[1:])
