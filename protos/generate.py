"""Write the gRPC stubs beside their .proto files: ``python protos/generate.py [--check]``.

``--check`` writes nothing and fails when a committed stub differs from what its .proto says.
"""

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(target: Path) -> None:
    """Write every stub under ``target/protos``."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *outputs, *sources]) != 0:
        raise SystemExit("protoc failed")


def stale() -> list[str]:
    """Names of committed stubs that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = sorted((Path(scratch) / "protos").iterdir())
        return [
            f.name
            for f in fresh
            if not (ROOT / "protos" / f.name).exists() or (ROOT / "protos" / f.name).read_bytes() != f.read_bytes()
        ]


def main() -> None:
    if "--check" in sys.argv[1:]:
        differing = stale()
        if differing:
            raise SystemExit(f"stale stubs, run `make protos`: {', '.join(differing)}")
    else:
        generate(ROOT)


if __name__ == "__main__":
    main()
