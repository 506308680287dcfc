"""Real Helm over the project's chart."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.helm.objects import COUNTS, Object

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm"
PRESETS = tuple(sorted(path.stem.removeprefix("values-") for path in CHART.glob("values-*.yaml")))
RELEASE, NAMESPACE = "prod", "serving"


class Refused(Exception):
    """Helm did not render; its own words."""


@dataclass(frozen=True)
class Chart:
    """One version of Helm, and the release that it would install."""

    binary: Path
    release: str = RELEASE
    namespace: str = NAMESPACE

    def lint(self, *arguments: str) -> None:
        COUNTS["lints"] += 1
        self._run("lint", "--strict", str(CHART), *arguments)

    def render(self, preset: str | None = None, settings: Sequence[str] = (), *, notes: bool = False) -> str:
        """What would be installed, as text.

        Args:
            settings: ``path=value``, as ``--set`` takes them; numbers with a point too, which it does not.

        Raises:
            Refused: the schema or a check of the chart is against it.
        """
        asked = (self, preset, tuple(settings), notes)
        if asked not in _rendered:
            _rendered[asked] = self._rendered(preset, tuple(settings), notes)
        return _rendered[asked]

    def _rendered(self, preset: str | None, settings: tuple[str, ...], notes: bool) -> str:
        COUNTS["renders"] += 1
        files = ["-f", str(CHART / f"values-{preset}.yaml")] if preset else []
        sets = [part for setting in settings for part in _set(setting)]
        kind = ["install", "--dry-run=client"] if notes else ["template"]
        return self._run(*kind, self.release, str(CHART), "--namespace", self.namespace, *files, *sets)

    def over(self, kubeconfig: Path, preset: str, settings: Sequence[str]) -> list[Object]:
        """What an upgrade would bring to a cluster that answers what it has."""
        COUNTS["renders"] += 1
        sets = [part for setting in settings for part in _set(setting)]
        asked = [self.release, str(CHART), "--namespace", self.namespace, "-f", str(CHART / f"values-{preset}.yaml")]
        server = ["--dry-run=server", "--is-upgrade", "--disable-openapi-validation"]
        text = self._run("template", *server, *asked, *sets, kubeconfig=kubeconfig)
        return [o for o in yaml.load_all(text, Loader=yaml.CSafeLoader) if o]

    def objects(self, preset: str | None = None, settings: Sequence[str] = ()) -> list[Object]:
        return [o for o in yaml.load_all(self.render(preset, settings), Loader=yaml.CSafeLoader) if o]

    def _run(self, *arguments: str, kubeconfig: Path = Path(os.devnull)) -> str:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        done = subprocess.run(
            [str(self.binary), *arguments], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode != 0:
            raise Refused(done.stderr + done.stdout)
        return done.stdout


_rendered: dict[tuple[Chart, str | None, tuple[str, ...], bool], str] = {}  # by what was asked


def _set(setting: str) -> tuple[str, str]:
    return ("--set-json" if re.fullmatch(r"[^=]+=\d+\.\d+", setting) else "--set", setting)


def tandem_yaml(objects: list[Object]) -> str:
    """The cluster's file, as pods find it."""
    (text,) = (
        o["data"]["tandem.yaml"]
        for o in objects
        if o["kind"] == "ConfigMap" and o["metadata"]["name"].endswith("-config")
    )
    return str(text)
