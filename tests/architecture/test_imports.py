"""The import ladder, read from the syntax trees: imports inside functions count like any other."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "kernels", "services", "loadgen", "protos")

# A part may import parts of lower rungs, and itself; parts that share a rung stay apart.
LADDER: tuple[tuple[str, ...], ...] = (
    ("kernels", "protos"),
    ("common.errors", "common.request", "common.clock", "common.version", "common.cancellation"),
    ("common.config", "common.telemetry"),
    ("common.rpc", "common.state", "common.bus", "common.kv"),
    ("common.transfer", "common.parallel", "common.process"),
    ("common.model",),
    ("common.engine",),
    ("common.worker",),
    ("services.scheduler", "services.prefill", "services.decode", "services.autoscaler", "services.launcher"),
    ("services.cli",),
    ("services.entry",),
)
# Edges on one rung that are meant, each with its reason.
SAME_RUNG = {
    ("common.state", "common.kv"),  # index entries are chain hashes
    ("common.rpc", "common.kv"),  # compatibility and ready blocks cross the wire
}
TORCH_FREE = (
    "common.rpc", "common.state", "common.bus", "common.kv", "common.config", "common.telemetry",
    "common.process", "services.scheduler", "services.autoscaler", "services.launcher", "services.cli", "loadgen",
)  # fmt: skip
STUB_READERS = ("common/rpc/",)


def sources() -> list[Path]:
    return [
        file
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        if not file.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(file: Path) -> list[str]:
    """Every module that a file names in an import statement, absolute."""
    found = []
    package = module_of(file).split(".") if file.name == "__init__.py" else module_of(file).split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def part_of(module: str) -> str | None:
    """The ladder's part that a module belongs to."""
    parts = module.split(".")
    for length in (2, 1):
        if any(".".join(parts[:length]) in rung for rung in LADDER):
            return ".".join(parts[:length])
    return None


def rung_of(part: str) -> int:
    return next(number for number, rung in enumerate(LADDER) if part in rung)


def broken_edges() -> list[str]:
    faults = []
    for file in sources():
        part = part_of(module_of(file))
        if part is None:
            continue
        for name in imports_of(file):
            target = part_of(name)
            if target is None or target == part or (part, target) in SAME_RUNG:
                continue
            if rung_of(target) >= rung_of(part):
                faults.append(f"{file.relative_to(ROOT)} imports {name}")
    return faults


def test_imports_go_down_the_ladder() -> None:
    assert broken_edges() == []


def test_the_ladder_knows_every_part() -> None:
    for top in ("common", "services"):
        for entry in (ROOT / top).iterdir():
            if (entry.is_dir() and (entry / "__init__.py").exists()) or (
                entry.suffix == ".py" and entry.stem != "__init__"
            ):
                assert part_of(f"{top}.{entry.stem}") == f"{top}.{entry.stem}", f"{entry} has no rung"


def test_the_load_generator_sees_public_parts_and_pure_policy_only() -> None:
    policy = ("services.scheduler.policy",)
    allowed = ("common.", "protos.inference", "protos.types", "loadgen", *policy)
    for file in sources():
        if file.is_relative_to(ROOT / "loadgen"):
            for name in imports_of(file):
                if name.split(".")[0] in PACKAGES:
                    assert name.startswith(allowed), f"{file.relative_to(ROOT)} imports {name}"
                    assert part_of(name) not in {"common.engine", "common.model", "common.worker", "common.transfer"}


def test_what_is_a_workers_serves_no_other_role() -> None:
    for file in sources():
        if file.is_relative_to(ROOT / "services") and file.parts[len(ROOT.parts) + 1] not in {"prefill", "decode"}:
            assert not [name for name in imports_of(file) if part_of(name) == "common.worker"], file


def test_stubs_are_read_at_the_edges_only() -> None:
    for file in sources():
        relative = file.relative_to(ROOT).as_posix()
        if relative.startswith(STUB_READERS) or file.name == "servicer.py" or relative.startswith("protos/"):
            continue
        for name in imports_of(file):
            assert not name.startswith("protos."), f"{relative} imports {name}"


def test_torch_free_packages_import_without_torch() -> None:
    """All in one process, where torch and NIXL cannot be imported."""
    names = [module_of(file) for file in sources()]
    modules = [name for name in names if (name + ".").startswith(tuple(f"{package}." for package in TORCH_FREE))]
    assert len(modules) > 50
    program = (
        "import importlib, sys\n"
        "sys.modules['torch'] = sys.modules['nixl_cu13'] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
