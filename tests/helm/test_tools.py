"""The tools of this suite can be had on a machine that has nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helm.fetch_tools import fetch_promtool

which = shutil.which


@pytest.mark.helm
@pytest.mark.skipif(which("apt-get") is None, reason="no Debian: promtool must be installed there")
def test_promtool_comes_without_package_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "promtool" else which(name))
    (tmp_path / "empty/partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(f'Dir::State::Lists "{tmp_path}/empty";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    binary = fetch_promtool(tmp_path)
    assert binary == tmp_path / "promtool"
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("promtool, version ")
