"""Rules of the tree that no other tool checks."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    "/" + "opt/tandem-venv",
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
    "max_live_requests", "max_attempts", "explained_requests", "min_groups", "max_groups",
}  # fmt: skip


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name]


# Pieces of formulas that other references share; each is part of a kernel and none of its own.
SHARED_REFERENCES = {"fp8_block_ref.py", "philox_ref.py", "silu_mul_ref.py"}


def kernels_with_reference() -> list[Path]:
    return sorted(file for file in (ROOT / "kernels").glob("*_ref.py") if file.name not in SHARED_REFERENCES)


@dataclass(frozen=True)
class Signature:
    """A public function from its text, since Triton need not be there. `extra` arguments have defaults by keyword."""

    arguments: tuple[str, ...]
    returns: str
    extra: tuple[str, ...] = ()


def signatures(file: Path) -> dict[str, Signature]:
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not node.decorator_list:
            spelled = {a.arg: f"{a.arg}: {ast.unparse(a.annotation)}" for a in _arguments(node) if a.annotation}
            optional = [a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
            needed = tuple(text for name, text in spelled.items() if name not in optional)
            returns = ast.unparse(node.returns) if node.returns else ""
            found[node.name] = Signature(needed, returns, tuple(spelled[name] for name in optional))
    return found


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    return node.args.posonlyargs + node.args.args + node.args.kwonlyargs


@pytest.mark.parametrize("reference", kernels_with_reference(), ids=lambda file: file.stem)
def test_a_kernel_and_its_reference_have_one_signature(reference: Path) -> None:
    """A kernel may take more by keyword with a default, such as a tile; nothing else differs."""
    kernel = reference.with_name(reference.name.replace("_ref.py", ".py"))
    assert kernel.exists(), f"{kernel.name} is not written"
    ours, theirs = signatures(kernel), signatures(reference)
    shared = ours.keys() & theirs.keys()
    assert shared, f"{kernel.name} has none of {sorted(theirs)}"
    for name in shared:
        assert (ours[name].arguments, ours[name].returns) == (theirs[name].arguments, theirs[name].returns), name
        assert set(theirs[name].extra) <= set(ours[name].extra), name


def test_every_kernel_has_a_reference() -> None:
    """Beside it, or beside the kernel that it is a variant of: fp8_gemm_splitk computes fp8_gemm."""
    references = {file.stem.removesuffix("_ref") for file in kernels_with_reference()}
    for file in sorted((ROOT / "kernels").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        launches = "@triton.jit" in text and "](" in text  # jitted pieces that kernels share are launched by none
        if launches and not file.name.endswith("_ref.py"):
            variants = {file.stem} | {name for name in references if file.stem.startswith(f"{name}_")}
            assert variants & references, f"{file.name} has no reference"


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

    for command in re.findall(r"(?:^|[`\s])(?<!helm install )tandem ([a-z][a-z-]*)", text):
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
