"""Helm's binaries, fetched once, and at the end the count of what was rendered and checked."""

from pathlib import Path

import pytest

from tests.helm.chart import ROOT, Chart
from tests.helm.fetch_tools import fetch
from tests.helm.objects import COUNTS


@pytest.fixture(scope="session")
def helm_binaries() -> dict[str, Path]:
    return fetch(ROOT / ".helm-tools")


@pytest.fixture(scope="session", params=["helm3", "helm4"])
def chart(request: pytest.FixtureRequest, helm_binaries: dict[str, Path]) -> Chart:
    return Chart(helm_binaries[request.param])


@pytest.fixture(scope="session")
def helm4(helm_binaries: dict[str, Path]) -> Chart:
    return Chart(helm_binaries["helm4"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        done = ", ".join(f"{COUNTS[what]} {what}" for what in ("lints", "renders", "objects"))
        terminalreporter.write_line(f"helm: {done} checked (an object once for each Kubernetes version)")
