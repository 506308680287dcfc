"""`tandem demo`: the demonstration model on a whole cluster of this machine, from nothing to a measured answer."""

import asyncio
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from common.config.cluster import ClusterConfig
from common.config.load import load_cluster
from common.errors import ConfigError
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from services.launcher.ask import Answer, ask
from services.launcher.up import running_cluster

ROOT = Path(__file__).resolve().parents[2]
DEMO_CONFIG = ROOT / "models" / "demo.yaml"
_START_TIMEOUT_S = 120.0
_INDEXED_AFTER_S = 0.3  # the prefix index is written in batches


class MemoryPeak:
    """The most memory that this process and its children held together, sampled from a thread.

    Shared pages count once per process, so the figure is an upper bound.
    """

    def __init__(self, interval_s: float = 0.2) -> None:
        self.peak_bytes = 0
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> "MemoryPeak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        root = psutil.Process(os.getpid())
        while not self._ended.wait(self._interval_s):
            self.peak_bytes = max(self.peak_bytes, sum(_rss_bytes(p) for p in [root, *root.children(recursive=True)]))


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def demo_config(model: Path | None) -> ClusterConfig:
    """The bundled description, or the same one around another model directory."""
    settings = [] if model is None else [f"model.path={model.absolute()}", f"model.name={model.name}"]
    if not DEMO_CONFIG.exists():
        raise ConfigError(f"{DEMO_CONFIG}: the demonstration's configuration is missing")
    return load_cluster(DEMO_CONFIG, settings)


def run_demo(prompt: str, max_tokens: int, model: Path | None, json_path: Path | None) -> None:
    begun_s = time.monotonic()
    console = Console()
    with (
        MemoryPeak() as memory,
        tempfile.TemporaryDirectory(prefix="tandem-demo-") as scratch,
        running_cluster(demo_config(model), Path(scratch), console, _START_TIMEOUT_S) as cluster,
    ):
        ready_s = time.monotonic() - begun_s
        console.rule("a whole cluster answers")
        console.print(prompt, end="", style="bold", highlight=False)
        measured = asyncio.run(_converse(cluster.schedulers[0], prompt, max_tokens)) | {"cluster_ready_s": ready_s}
    measured["peak_memory_gib"] = memory.peak_bytes / 2**30
    table = Table("measured here", "")
    for name, value in measured.items():
        table.add_row(name.replace("_", " "), f"{value:.3g}" if value < 100 else f"{value:.0f}")
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


async def _converse(address: str, prompt: str, max_tokens: int) -> dict[str, float]:
    """Let the model continue `prompt`, then twice what that gave: the second time from the prefix cache."""

    def request(text: str, tokens: int) -> GenerateRequest:
        return GenerateRequest(
            text=text,
            sampling=SamplingOptions(temperature=0.7, seed=1),
            stopping=Stopping(max_tokens=tokens, ignore_eos=True),
        )

    async with InferenceClient(address) as client:
        first = await ask(client, request(prompt, max_tokens), show=True)
        longer = prompt + first.text
        cold = await ask(client, request(longer, 16), show=False)
        await asyncio.sleep(_INDEXED_AFTER_S)
        warm = await ask(client, request(longer, 16), show=False)
    return _measured(first, cold, warm)


def _measured(first: Answer, cold: Answer, warm: Answer) -> dict[str, float]:
    """The first request comes while decode still connects to prefill, once for all requests, and waits for that."""
    drafted = first.usage.drafted_tokens
    streaming_s = first.total_s - first.first_token_s
    return {
        "first_token_ms": first.first_token_s * 1000,
        "tokens_per_s": (len(first.token_ids) - 1) / streaming_s if streaming_s > 0 else 0.0,
        "mtp_acceptance": first.usage.accepted_tokens / drafted if drafted else 0.0,
        "first_transfer_with_connecting_ms": dict(first.ledger.entries).get("exposed_transfer", 0.0) * 1000,
        "long_prompt_tokens": float(cold.usage.prompt_tokens),
        "long_prompt_first_token_ms": cold.first_token_s * 1000,
        "long_prompt_exposed_transfer_ms": dict(cold.ledger.entries).get("exposed_transfer", 0.0) * 1000,
        "again_cached_tokens": float(warm.usage.cached_tokens),
        "again_first_token_ms": warm.first_token_s * 1000,
        "again_same_tokens": float(warm.token_ids == cold.token_ids),
    }
