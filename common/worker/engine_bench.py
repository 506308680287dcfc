"""The engines of one process without services around them: what the services' throughput is compared with.

    python -m common.worker.engine_bench --config CLUSTER.yaml --concurrency 32 --prompt-tokens 64 --tokens 128

Prints one JSON object. The rate is taken while all sequences run, from the last one's start to the first one's end.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import torch

from common.clock import MonotonicClock
from common.config.cluster import ClusterConfig, ParallelConfig, WorkerConfig
from common.config.load import load_cluster
from common.config.place import PodPlace, rank
from common.engine.decode_engine import DecodeEngine
from common.engine.events import BlocksReady, Failed, HandoffReady, Reserved, Started, Tokens
from common.engine.prefill_engine import PrefillEngine
from common.errors import InternalError
from common.kv.block_pool import BlockPool
from common.parallel.waits import run
from common.request import Handoff, Limits, ReadyBlock, Sampling, Work
from common.worker.engine_shape import decode_settings, prefill_settings
from common.worker.rank_parts import RankParts, build_rank


class InProcess:
    """A prefill and a decode engine side by side; latent is copied from one pool to the other."""

    def __init__(self, config: ClusterConfig) -> None:
        clock = MonotonicClock()
        self._sources, self._targets = (_parts(config, role_blocks) for role_blocks in _pools(config))
        self.prefill = PrefillEngine(
            prefill_settings(config), self._sources.runner, BlockPool(config.prefill.blocks), clock,
            self._sources.group.gate, root=self._sources.root, incarnation=1,
        )  # fmt: skip
        self.decode = DecodeEngine(
            decode_settings(config), self._targets.runner, BlockPool(config.decode.blocks), clock,
            self._targets.group.gate, root=self._targets.root,
        )  # fmt: skip
        self._ready: dict[str, dict[int, ReadyBlock]] = {}
        self._handoffs: dict[str, Handoff] = {}

    def prefill_all(self, works: list[Work]) -> None:
        """Compute every prompt and hand it over to decode, which has not stepped yet."""
        by_id = {work.work_id: work for work in works}
        for work in works:
            self.prefill.submit(work, True)
        while len(self._handoffs) < len(works):
            for event in run(self.prefill.step()):
                match event:
                    case Started():
                        self._ready[event.work_id] = {}
                        self.decode.admit(by_id[event.work_id])
                    case BlocksReady():
                        self._ready[event.work_id] |= {block.index: block for block in event.blocks}
                    case HandoffReady():
                        self._handoffs[event.work_id] = event.handoff
                    case Failed():
                        raise event.error
        while self._handoffs:
            for reserved in run(self.decode.step()):
                if isinstance(reserved, Reserved):
                    self._land(reserved)

    def _land(self, reserved: Reserved) -> None:
        blocks = self._ready.pop(reserved.work_id)
        here = list(reserved.blocks[reserved.cached_blocks :])
        there = [blocks[index].block for index in range(reserved.cached_blocks, len(reserved.blocks))]
        self._targets.pool.copy_from(self._sources.pool, there, here)
        self.prefill.release_lease(reserved.work_id)
        self.decode.landed(reserved.work_id, self._handoffs.pop(reserved.work_id))


def decode_rate(config: ClusterConfig, concurrency: int, prompt_tokens: int, tokens: int) -> dict[str, float]:
    """Tokens per second of `concurrency` sequences that all run."""
    engines = InProcess(config)
    vocab = engines.decode.runner.model.vocab_size
    draws = random.Random(1)
    works = [
        Work(
            work_id=f"bench-{number}",
            scheduler="bench",
            token_ids=tuple(draws.randrange(vocab) for _ in range(prompt_tokens)),
            prompt_tokens=prompt_tokens,
            sampling=Sampling(temperature=0.0),
            limits=Limits(tokens, min_tokens=tokens),
        )
        for number in range(concurrency)
    ]
    engines.prefill_all(works)
    generated = steps = drafted = accepted = 0
    begun_s = time.monotonic()
    while True:
        for event in run(engines.decode.step()):
            if not isinstance(event, Tokens):
                raise InternalError(f"unexpected {type(event).__name__} while all sequences run")
            generated += len(event.tokens)
            drafted, accepted = drafted + event.drafted, accepted + event.accepted
            if event.finish_reason is not None:
                seconds = time.monotonic() - begun_s
                return {
                    "tokens_per_s": generated / seconds,
                    "step_ms": 1000 * seconds / (steps + 1),
                    "mtp_acceptance": accepted / drafted if drafted else 0.0,
                }
        steps += 1


def _pools(config: ClusterConfig) -> tuple[int, int]:
    return config.prefill.blocks, config.decode.blocks


def _parts(config: ClusterConfig, blocks: int) -> RankParts:
    place = rank(ParallelConfig(), PodPlace("decode", 0, 0), 0)
    return build_rank(config, WorkerConfig(), place, blocks=blocks, rendezvous="", clock=MonotonicClock())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rate = decode_rate(load_cluster(given.config), given.concurrency, given.prompt_tokens, given.tokens)
    sys.stdout.write(json.dumps(rate) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
