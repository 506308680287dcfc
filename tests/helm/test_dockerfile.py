"""The images install what pyproject.toml says, pinned, and run as nobody of importance."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from common.version import VERSION
from tests.helm.resolve_images import IMAGES, resolve

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = IMAGES


@dataclass
class Stage:
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, its text

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]


def parse(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """Global arguments with their defaults, and stages by name."""
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, name = re.fullmatch(r"\$\{(\w+)\} AS (\w+)", rest).groups()  # type: ignore[union-attr]
            current = stages[name] = Stage(arguments[base])
        elif current is None:
            assert instruction == "ARG", line
            arguments.update([rest.split("=", 1)])  # type: ignore[list-item]
        else:
            current.steps.append((instruction, rest))
    return arguments, stages


ARGUMENTS, STAGES = parse((ROOT / "Dockerfile").read_text())


def versions(target: str) -> dict[str, Version]:
    lines = (ROOT / f"constraints-{target}.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if line[0] != "#")
    return {canonicalize_name(name): Version(version) for name, _, version in pairs}


def test_there_is_a_target_for_each_extra_that_runs() -> None:
    assert tuple(STAGES) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_one_install_step_takes_the_extra_of_the_targets_name(target: str) -> None:
    installs = [step for step in STAGES[target].all("RUN") if "pip install" in step]
    torch = '"${TORCH}" ' if target == "cpu" else ""
    assert installs == [f"pip install --constraint constraints-{target}.txt {torch}'.[{target}]'"]
    copied = {word for step in STAGES[target].all("COPY") for word in step.split()[:-1]}
    packages = {pattern.rstrip("*") for pattern in package_patterns()}
    assert packages | {"pyproject.toml", f"constraints-{target}.txt"} <= copied
    assert all((ROOT / name).exists() for name in copied)


def package_patterns() -> list[str]:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return list(setup["packages"]["find"]["include"])


@pytest.mark.parametrize("target", TARGETS)
def test_bases_are_pinned_and_name_no_registry(target: str) -> None:
    repository, _, tag = STAGES[target].base.partition(":")
    assert re.search(r"\d+\.\d+\.\d+", tag), tag
    assert "." not in repository.split("/")[0]


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_the_charts_and_not_root(target: str) -> None:
    assert STAGES[target].all("USER") == ["10001:10001"]
    assert STAGES[target].steps[-1][0] == "CMD"
    assert yaml.safe_load((ROOT / "helm/values.yaml").read_text())["runAsUser"] == 10001


@pytest.mark.parametrize("target", TARGETS)
def test_every_requirement_has_one_version_within_its_bounds(target: str) -> None:
    known = versions(target)
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"][target]
    if target == "cpu":
        wanted = [*wanted, ARGUMENTS["TORCH"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(known[canonicalize_name(requirement.name)]), requirement


@pytest.mark.helm
@pytest.mark.parametrize("target", TARGETS)
def test_the_versions_exist_and_agree_with_one_another(target: str, tmp_path: Path) -> None:
    """Resolved anew for the image's Python and platform from metadata alone, they come out as they are."""
    file = tmp_path / f"constraints-{target}.txt"
    now = (ROOT / file.name).read_text()
    file.write_text(now)
    resolve(target, file)
    assert file.read_text() == now


def test_the_makefile_and_the_image_take_the_same_torch() -> None:
    assert f"TORCH ?= {ARGUMENTS['TORCH']}\n" in (ROOT / "Makefile").read_text()


def test_the_chart_names_the_images_of_this_version() -> None:
    assert f'appVersion: "{VERSION}"' in (ROOT / "helm/Chart.yaml").read_text()
    assert f"-t tandem-serve:{VERSION}-cpu" in (ROOT / "Dockerfile").read_text()
