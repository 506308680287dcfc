"""What every rank process builds before it serves or follows: model, memory, runner."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import torch

from common.clock import Clock
from common.config.cluster import ClusterConfig, WorkerConfig
from common.config.place import RankPlace
from common.config.tokenizer_file import read_tokenizer
from common.engine.latent_pool import LatentPool
from common.engine.loop import follow
from common.engine.runner import Runner
from common.engine.sampler import Sampler
from common.kv.hashing import HASH_CONTRACT, root_hash
from common.model.base import Model
from common.model.config import read_model_config
from common.model.fingerprint import model_fingerprint
from common.model.load import load_model
from common.parallel.waits import run
from common.request import Compatibility
from common.telemetry.logs import get_log
from common.worker.group import RankGroup, join_group
from common.worker.memory import asked_by, device_of

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class RankParts:
    model: Model
    group: RankGroup
    pool: LatentPool
    runner: Runner
    compatibility: Compatibility
    root: Callable[[str], bytes]  # tenant -> parent hash of its first blocks

    def leave_group(self) -> None:
        """Let the instance's other ranks go and leave; for the leader's engine thread, at its end."""
        run(self.runner.release_followers())
        self.group.close()

    def follow(self) -> None:
        """Take the leader's plans until it ends."""
        follow(self.runner)
        self.group.close()


def build_rank(
    config: ClusterConfig, worker: WorkerConfig, place: RankPlace, *, blocks: int, rendezvous: str, clock: Clock
) -> RankParts:
    """Join the group, read the weights that this rank owns, and allocate its latent pool.

    Raises:
        ConfigError, CheckpointError: names what cannot be served.
    """
    path = Path(config.model.path)
    device = device_of(config, place)
    dtype = getattr(torch, config.model.dtype)
    group = join_group(
        place,
        experts=read_model_config(path).gate.experts,
        schedule=worker.schedule,
        rendezvous=rendezvous,
        host=worker.host,
        clock=clock,
        meet_within_s=worker.start_timeout_s,
        silence_s=worker.group_silence_s,
    )
    log.info("loading weights", path=path, rank=place.rank)
    model = load_model(
        path,
        dtype=dtype,
        device=device,
        topology=group.topology,
        all_to_all=group.all_to_all,
        tensor_group=group.tensor_group,
    )
    shape = (blocks, model.latent_layers, config.block_tokens, model.latent_width)
    with asked_by(f"{place.pod.role}.blocks", blocks, prod(shape) * dtype.itemsize, device):
        pool = LatentPool(*shape, dtype, device)
    if group.arrival is not None:
        group.arrival.wait("loaded", worker.start_timeout_s)
    undrawable = undrawable_ids(path, model.vocab_size)
    sampler = Sampler(None if undrawable is None else undrawable.to(device))
    runner = Runner(model, pool, group.tensor_group, sampler, config.draft_tokens)
    compatibility = Compatibility(
        model_fingerprint=model_fingerprint(path),
        hash_contract=HASH_CONTRACT,
        kv_dtype=config.model.dtype,
        block_tokens=config.block_tokens,
        latent_layers=model.latent_layers,
        latent_width=model.latent_width,
        draft_tokens=config.draft_tokens,
    )
    log.info("loaded", fingerprint=compatibility.model_fingerprint, blocks=blocks, block_bytes=pool.block_bytes)
    return RankParts(model, group, pool, runner, compatibility, roots(compatibility))


def roots(compatibility: Compatibility) -> Callable[[str], bytes]:
    """Tenant -> parent hash of its first blocks."""

    @lru_cache(maxsize=4096)
    def root(tenant: str) -> bytes:
        return root_hash(compatibility.model_fingerprint, compatibility.block_tokens, compatibility.kv_dtype, tenant)

    return root


def undrawable_ids(path: Path, vocab_size: int) -> torch.Tensor | None:
    """``[vocab]`` bool, True for ids without a token in tokenizer.json; None when there are none, or no file."""
    file = path / "tokenizer.json"
    if not file.exists():
        return None
    known = torch.tensor(sorted(read_tokenizer(file).get_vocab(with_added_tokens=True).values()))
    undrawable = torch.ones(vocab_size, dtype=torch.bool)
    undrawable[known[known < vocab_size]] = False
    return undrawable if bool(undrawable.any()) else None
