"""Rules of the tree that no other tool checks."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from common.config.cluster import ClusterConfig

ROOT = Path(__file__).resolve().parents[2]
# Words of a working place, put together here so that this file does not hold them itself.
FORBIDDEN = [
    "/" + "work/",
    "/" + "opt/tandem",
    "shared/" + "design",
    "chat" + "gpt",
    "clau" + "de",
    "copi" + "lot",
    "language " + "model assistant",
]
UNITS = ("_s", "_ms", "_us", "_bytes", "_tokens", "_blocks", "_limit")
# Quantities whose name is the unit, counts of named things, and ports.
PLAIN_NUMBERS = {
    "blocks", "groups", "ep", "tp", "threads", "replicas", "instances_per_pod", "max_running", "max_queued",
    "max_live_requests", "max_attempts", "explained_requests",
}  # fmt: skip


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name]


def kernels_with_reference() -> list[Path]:
    return sorted((ROOT / "kernels").glob("*_ref.py"))


def signature(file: Path, name: str) -> tuple[str, ...] | None:
    """Argument names and annotations of a module's public function, from its text (Triton need not be there)."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            returns = ast.unparse(node.returns) if node.returns else ""
            return (*(f"{a.arg}: {ast.unparse(a.annotation) if a.annotation else ''}" for a in arguments), returns)
    return None


@pytest.mark.parametrize("reference", kernels_with_reference(), ids=lambda file: file.stem)
def test_a_kernel_and_its_reference_have_one_signature(reference: Path) -> None:
    kernel = reference.with_name(reference.name.replace("_ref.py", ".py"))
    if not kernel.exists():
        pytest.skip(f"{kernel.name} is not written; the reference serves alone")
    public = [
        node.name
        for node in ast.parse(reference.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    shared = [name for name in public if signature(kernel, name) is not None]
    assert shared, f"{kernel.name} has none of {public}"
    for name in shared:
        assert signature(kernel, name) == signature(reference, name), name


def test_every_kernel_has_a_reference() -> None:
    for file in sorted((ROOT / "kernels").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "@triton.jit" in text and not file.name.endswith("_ref.py"):
            assert file.with_name(f"{file.stem}_ref.py").exists(), f"{file.name} has no reference beside it"


def test_stubs_are_what_the_protos_say() -> None:
    done = subprocess.run(
        [sys.executable, "protos/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation)


def is_number(annotation: object) -> bool:
    if get_origin(annotation) is UnionType:
        return any(is_number(part) for part in get_args(annotation) if part is not NoneType)
    return annotation in (int, float)


def test_numbers_in_the_configuration_carry_their_unit() -> None:
    for section in sections(ClusterConfig):
        assert section.model_config.get("frozen"), section.__name__
        assert section.model_config.get("extra") == "forbid", section.__name__
        for name, field in section.model_fields.items():
            if is_number(field.annotation):
                named = name.endswith((*UNITS, "_port")) or name in PLAIN_NUMBERS or name == "port"
                assert named, f"{section.__name__}.{name} says no unit"


def test_the_tree_speaks_of_itself_alone() -> None:
    for file in tracked():
        if file.suffix in {".safetensors", ".png", ".gz", ".bin"} or not file.is_file():
            continue
        text = file.read_bytes().decode("utf-8", errors="replace").lower()
        for word in FORBIDDEN:
            assert word not in text, f"{file.relative_to(ROOT)} holds {word!r}"


def test_commands_in_the_readme_exist() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.fail("README.md is missing")
    text = readme.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for target in re.findall(r"(?:^|[`\s])make ([a-z][a-z0-9-]*)", text):
        assert target in targets, f"README names make {target}"
    from services.cli import command_names

    for command in re.findall(r"(?:^|[`\s])tandem ([a-z][a-z-]*)", text):
        assert command in command_names(), f"README names tandem {command}"


def test_files_stay_short(record_property: Callable[[str, object], None]) -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in tracked()
        if file.suffix == ".py" and "_pb2" not in file.name and not file.is_relative_to(ROOT / "tests")
    }
    long = {name: lines for name, lines in sorted(lengths.items(), key=lambda item: -item[1]) if lines > 350}
    record_property("files over 350 lines", long)
    ordered = sorted(lines for lines in lengths.values() if lines)
    assert ordered[len(ordered) // 2] <= 140, f"median file is {ordered[len(ordered) // 2]} lines"
    assert len(long) <= len(lengths) // 20, long
