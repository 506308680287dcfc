"""What holds for every test. Triton chooses its interpreter when it is first imported, by whichever test that is."""

import os
import signal
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# A shell's background job starts with Ctrl-C ignored, and its children would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.json_logs", "tests.servers"]
