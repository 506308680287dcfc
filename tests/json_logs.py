"""What processes write with ``--log-format json``, as tests read it."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest

from common.telemetry.logs import configure_logs


@pytest.fixture
def json_logs() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """This process logs as JSON, and to here; gives all lines so far."""
    root, written = logging.getLogger(), io.StringIO()
    before = root.handlers, root.level
    with redirect_stderr(written):
        configure_logs("here", form="json")
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    root.handlers, root.level = before
