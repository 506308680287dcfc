"""What holds for every test. Triton chooses its interpreter when it is first imported, by whichever test that is."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tests.json_logs", "tests.servers"]
