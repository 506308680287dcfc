"""`tandem bench services`: what the services cost beside the engines, on this machine."""

import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from common.config.load import dump_cluster
from common.errors import InternalError
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from services.launcher.ask import ask
from services.launcher.bench_lookup import lookup_times_ms
from services.launcher.demo import demo_config
from services.launcher.up import running_cluster

CONCURRENCY, PROMPT_TOKENS, TOKENS = 32, 64, 128
LONG_PROMPT_TOKENS, LONG_PROMPTS = 2000, 5
_START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Bound:
    """A measured value and what it must keep to."""

    name: str
    value: float
    limit: float | None = None

    @property
    def kept(self) -> bool:
        return self.limit is None or self.value <= self.limit


def run_bench(model: Path | None, json_path: Path | None) -> None:
    console = Console()
    bounds = [*_demo(model, console), *_lookup(console), *_services(model, console)]
    table = Table("measured", "value", "at most", "")
    for bound in bounds:
        limit = "" if bound.limit is None else f"{bound.limit:g}"
        table.add_row(
            bound.name.replace("_", " "), f"{bound.value:.4g}", limit, "" if bound.kept else "[red]over[/red]"
        )
    console.print(table)
    if json_path is not None:
        values = {bound.name: bound.value for bound in bounds}
        json_path.write_text(json.dumps({"machine": machine(), **values}, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _demo(model: Path | None, console: Console) -> list[Bound]:
    """The demonstration in a process of its own, timed from its command on."""
    console.print("running the demonstration")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "demo.json"
        command = [sys.executable, "-m", "services.cli", "demo", "--json", str(file)]
        command += [] if model is None else ["--model", str(model)]
        begun_s = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InternalError(f"the demonstration ended with code {done.returncode}: {done.stderr[-2000:]}")
        total_s = time.monotonic() - begun_s
        measured = json.loads(file.read_text(encoding="utf-8"))
    first_token_s = measured["cluster_ready_s"] + measured["first_token_ms"] / 1000
    return [
        Bound("demo_first_token_s", first_token_s, 60.0),
        Bound("demo_total_s", total_s),
        Bound("demo_peak_memory_gib", measured["peak_memory_gib"], 6.0),
        Bound("demo_mtp_acceptance", measured["mtp_acceptance"]),
    ]


def _lookup(console: Console) -> list[Bound]:
    console.print("looking up prefixes of 2,560 blocks")
    times_ms = sorted(asyncio.run(lookup_times_ms(blocks=2560, lookups=500)))
    return [
        Bound("prefix_lookup_2560_blocks_p50_ms", times_ms[len(times_ms) // 2]),
        Bound("prefix_lookup_2560_blocks_p99_ms", times_ms[len(times_ms) * 99 // 100], 5.0),
    ]


def _services(model: Path | None, console: Console) -> list[Bound]:
    config = demo_config(model)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "cluster.yaml"
        file.write_text(dump_cluster(config), encoding="utf-8")
        console.print(f"decoding {CONCURRENCY} sequences in one process")
        alone = _engine_rate(file)
        with running_cluster(config, Path(scratch) / "run", console, _START_TIMEOUT_S) as cluster:
            console.print(f"decoding {CONCURRENCY} sequences through the services")
            served = asyncio.run(_served_rate(cluster.schedulers[0]))
            console.print(f"transferring {LONG_PROMPTS} prompts of {LONG_PROMPT_TOKENS} tokens")
            exposed = asyncio.run(_exposed_shares(cluster.schedulers[0]))
    return [
        Bound("decode_tokens_per_s_in_process", alone),
        Bound("decode_tokens_per_s_through_services", served),
        Bound("decode_overhead_of_services", 1 - served / alone, 0.10),
        Bound("exposed_transfer_share_of_ttft", max(exposed), 0.10),
    ]


def _engine_rate(file: Path) -> float:
    command = [
        sys.executable, "-m", "common.worker.engine_bench", "--config", str(file), "--concurrency", str(CONCURRENCY),
        "--prompt-tokens", str(PROMPT_TOKENS), "--tokens", str(TOKENS),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise InternalError(f"the engines ended with code {done.returncode}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout)["tokens_per_s"])


async def _served_rate(address: str) -> float:
    """Tokens per second from the last request's first token to the first request's last one."""
    async with InferenceClient(address) as client:
        vocab_tokens = (await client.model()).vocab_tokens
        draws = random.Random(1)
        arrivals: list[tuple[float, int]] = []  # time, tokens
        begun_s, ended_s = [], []

        async def one(prompt: tuple[int, ...]) -> None:
            request = GenerateRequest(
                token_ids=prompt,
                sampling=SamplingOptions(temperature=0.0),
                stopping=Stopping(max_tokens=TOKENS, ignore_eos=True),
            )
            async for delta in client.generate(request):
                now_s = time.monotonic()
                if delta.token_ids:
                    arrivals.append((now_s, len(delta.token_ids)))
                    begun.setdefault(prompt, now_s)
            ended_s.append(time.monotonic())

        begun: dict[tuple[int, ...], float] = {}
        prompts = [_prompt(draws, vocab_tokens, PROMPT_TOKENS) for _ in range(CONCURRENCY)]
        await asyncio.gather(*(one(prompt) for prompt in prompts))
        begun_s = list(begun.values())
    first_s, last_s = max(begun_s), min(ended_s)
    return sum(tokens for at_s, tokens in arrivals if first_s < at_s <= last_s) / (last_s - first_s)


async def _exposed_shares(address: str) -> list[float]:
    """Of each long prompt, the share of its time to first token for which its transfer kept decode waiting."""
    draws = random.Random(2)
    shares = []
    async with InferenceClient(address) as client:
        vocab_tokens = (await client.model()).vocab_tokens
        for _ in range(LONG_PROMPTS):
            request = GenerateRequest(
                token_ids=_prompt(draws, vocab_tokens, LONG_PROMPT_TOKENS),
                sampling=SamplingOptions(temperature=0.0),
                stopping=Stopping(max_tokens=8, ignore_eos=True),
            )
            answer = await ask(client, request, show=False)
            shares.append(dict(answer.ledger.entries).get("exposed_transfer", 0.0) / answer.first_token_s)
    return shares


def _prompt(draws: random.Random, vocab_tokens: int, tokens: int) -> tuple[int, ...]:
    """From the lower half of the vocabulary: ids of its padding have no token and are refused."""
    return tuple(draws.randrange(3, vocab_tokens // 2) for _ in range(tokens))
