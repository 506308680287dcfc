"""HCAs and the kernel's ways to GPU memory, from /sys."""

import re
from pathlib import Path

from services.launcher.doctor.facts import Hca

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_DMABUF_KERNEL = (5, 12)


def gather_hcas(root: Path) -> tuple[Hca, ...]:
    """One for each directory of ``/sys/class/infiniband``."""
    if not root.is_dir():
        return ()
    return tuple(_hca(one) for one in sorted(root.iterdir()))


def peer_memory(modules: Path, driver: Path) -> bool:
    """nvidia_peermem is loaded, or the open NVIDIA driver runs on a kernel that exports dmabuf."""
    if any((modules / name).is_dir() for name in _PEER_MODULES):
        return True
    text = driver.read_text(encoding="utf-8") if driver.exists() else ""
    return "Open Kernel Module" in text and _kernel() >= _DMABUF_KERNEL


def _hca(path: Path) -> Hca:
    ports = sorted((path / "ports").iterdir()) if (path / "ports").is_dir() else []
    states = [_text(port / "state") for port in ports]
    gids = sorted((ports[0] / "gids").iterdir(), key=lambda one: int(one.name)) if ports else []
    return Hca(
        name=path.name,
        active=any("ACTIVE" in state for state in states),
        link_layer=_text(ports[0] / "link_layer") if ports else "",
        gids=tuple(int(one.name) for one in gids if _text(one) not in ("", _NO_GID)),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:  # an index without an address cannot be read
        return ""


def _kernel() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", Path("/proc/sys/kernel/osrelease").read_text(encoding="ascii"))
    return (int(found[1]), int(found[2])) if found else (0, 0)
