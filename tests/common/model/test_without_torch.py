"""The scheduler reads vocabulary, context length and fingerprint with torch absent."""

import subprocess
import sys

from tests.oracle.zoo import Zoo

SCRIPT = """
import sys
from pathlib import Path
sys.modules["torch"] = None
sys.modules["safetensors"] = None
from common.model.config import read_model_config
from common.model.fingerprint import model_fingerprint
directory = Path(sys.argv[1])
print(read_model_config(directory).vocab_size, model_fingerprint(directory))
"""


def test_config_and_fingerprint(zoo: Zoo) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(zoo.checkpoint("base"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    vocabulary, fingerprint = done.stdout.split()
    assert vocabulary == "512"
    assert len(fingerprint) == 32
