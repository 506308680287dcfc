"""The one description of a cluster that all its processes read. Frozen; checked once, when it is built.

A port of 0 means any free one: the launcher writes the numbers it found into the resolved copy of the file.
"""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from common.config.autoscaler import AutoscalerConfig
from common.config.section import Section

EMBEDDED = "embedded"


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    url = urlsplit(text)
    try:
        port = url.port
    except ValueError:  # no number
        return False
    return url.scheme in schemes and port != 0


class ModelConfig(Section):
    """Which checkpoint is served and how its numbers are held."""

    path: str = Field(min_length=1)  # a Hugging Face directory
    name: str = Field(min_length=1)  # what clients ask for
    dtype: Literal["float32", "bfloat16"] = "float32"  # activations and latent
    device: Literal["cpu", "cuda"] = "cpu"


class ParallelConfig(Section):
    """How many EP groups a pool has and how the ranks of one are cut into instances and pods."""

    groups: int = Field(default=1, ge=0)
    ep: int = Field(default=1, ge=1)  # ranks that share the experts
    tp: int = Field(default=1, ge=1)  # ranks of one instance
    instances_per_pod: int = Field(default=0, ge=0)  # 0: the whole group in one pod

    @model_validator(mode="after")
    def _whole_instances(self) -> "ParallelConfig":
        if self.ep % self.tp != 0:
            raise ValueError(f"ep = {self.ep}: must be a multiple of tp = {self.tp} (ep = dp * tp)")
        if self.instances_per_pod and self.dp % self.instances_per_pod != 0:
            raise ValueError(f"instances_per_pod = {self.instances_per_pod}: must divide dp = ep / tp = {self.dp}")
        return self

    @property
    def dp(self) -> int:
        """Instances of one group."""
        return self.ep // self.tp

    @property
    def pods_per_group(self) -> int:
        return self.dp // (self.instances_per_pod or self.dp)


class WorkerConfig(Section):
    """What holds for a worker process of either role."""

    host: str = "127.0.0.1"  # where it listens and what it tells others
    first_port: int = Field(default=0, ge=0, le=65535)  # instance i of a pod listens on first_port + i
    first_metrics_port: int = Field(default=0, ge=0, le=65535)
    threads: int = Field(default=1, ge=1)  # of torch, for one rank
    schedule: Literal["none", "dispatch_overlap", "dual_microbatch"] = "none"
    start_timeout_s: float = Field(default=3600.0, gt=0)  # loading weights included
    group_silence_s: float = Field(default=60.0, gt=0)  # a rank of the group that is silent for longer is lost
    stalled_after_s: float = Field(default=10.0, gt=0)  # an engine or a reader that hangs for longer is not live
    drain_timeout_s: float = Field(default=60.0, ge=0)


class PrefillConfig(Section):
    """The prefill pool."""

    parallel: ParallelConfig = ParallelConfig()
    worker: WorkerConfig = WorkerConfig()
    blocks: int = Field(default=512, ge=2)  # of each instance's KV pool
    chunk_tokens: int = Field(default=512, ge=1)  # computed in one step
    max_running: int = Field(default=16, ge=1)  # sequences under way at once
    max_queued: int = Field(default=1024, ge=1)
    lease_s: float = Field(default=30.0, gt=0)  # read lease, renewed while its transfer lives


class DecodeConfig(Section):
    """The decode pool."""

    parallel: ParallelConfig = ParallelConfig()
    worker: WorkerConfig = WorkerConfig()
    blocks: int = Field(default=1024, ge=2)  # of each instance's KV pool
    max_running: int = Field(default=32, ge=1)  # sequences in a step
    max_queued: int = Field(default=1024, ge=1)
    landing_blocks: int = Field(default=64, ge=2)  # of the landing arena
    transfer_timeout_s: float = Field(default=120.0, gt=0)  # prefill's computing included; a dead peer ends it sooner
    draining_blocks_limit: int = Field(default=48, ge=1)  # of the arena, for reads from one prefill, draining included

    @model_validator(mode="after")
    def _draining_fits(self) -> "DecodeConfig":
        if self.draining_blocks_limit >= self.landing_blocks:
            raise ValueError(
                f"draining_blocks_limit = {self.draining_blocks_limit}: must be below landing_blocks = "
                f"{self.landing_blocks}, for one stopped prefill instance would keep the others' transfers waiting"
            )
        return self


class SchedulerConfig(Section):
    """The front door and the placement."""

    replicas: int = Field(default=1, ge=1)
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)  # replica i listens on port + i
    http_port: int = Field(default=0, ge=0, le=65535)  # likewise
    metrics_port: int = Field(default=0, ge=0, le=65535)  # likewise
    lookup_budget_ms: float = Field(default=20.0, gt=0)
    max_live_requests: int = Field(default=4096, ge=1)
    max_wait_s: float = Field(default=30.0, gt=0)  # for a turn; who is predicted to wait longer is shed at once
    max_attempts: int = Field(default=4, ge=1)  # of one choice, resumes included
    explained_requests: int = Field(default=4096, ge=1)  # how many recent ones `tandem why` knows
    drain_timeout_s: float = Field(default=60.0, ge=0)


class RedisConfig(Section):
    url: str = EMBEDDED  # or redis://host:port/db
    timeout_s: float = Field(default=1.0, gt=0)
    start_timeout_s: float = Field(default=60.0, gt=0)  # how long a process waits for it at its start
    worker_lease_s: float = Field(default=6.0, gt=0)  # membership; renewed at a third of it

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        if url != EMBEDDED and not _is_url(url, ("redis", "rediss", "unix")):
            raise ValueError("must be embedded or redis://, rediss:// or unix:// (not shown: it may hold a password)")
        return url


class NatsConfig(Section):
    url: str = EMBEDDED  # or nats://host:port, several with commas between
    timeout_s: float = Field(default=1.0, gt=0)
    start_timeout_s: float = Field(default=60.0, gt=0)
    load_interval_s: float = Field(default=0.25, gt=0)  # between load reports

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        if url != EMBEDDED and not all(_is_url(one.strip(), ("nats", "tls", "ws", "wss")) for one in url.split(",")):
            raise ValueError("must be embedded or nats://, tls://, ws:// or wss:// (not shown: it may hold a password)")
        return url


class ClusterConfig(Section):
    """The whole file."""

    cluster: str = Field(default="tandem", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    model: ModelConfig
    block_tokens: int = Field(default=64, ge=1)
    context_tokens: int = Field(default=4096, ge=2)  # prompt + completion
    draft_tokens: int = Field(default=1, ge=0, le=8)  # proposed a step; 0: MTP off
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    redis: RedisConfig = RedisConfig()
    nats: NatsConfig = NatsConfig()
    autoscaler: AutoscalerConfig = AutoscalerConfig()

    @property
    def context_blocks(self) -> int:
        """Blocks of a sequence as long as the context allows."""
        return -(-self.context_tokens // self.block_tokens)

    @model_validator(mode="after")
    def _groups_are_known(self) -> "ClusterConfig":
        for pool, scaling, parallel in (
            ("prefill", self.autoscaler.prefill, self.prefill.parallel),
            ("decode", self.autoscaler.decode, self.decode.parallel),
        ):
            if scaling.max_groups > parallel.groups:
                raise ValueError(
                    f"autoscaler.{pool}.max_groups = {scaling.max_groups}: at most {pool}.parallel.groups = "
                    f"{parallel.groups}"
                )
        return self

    @model_validator(mode="after")
    def _context_fits(self) -> "ClusterConfig":
        for pool, blocks in (("prefill", self.prefill.blocks), ("decode", self.decode.blocks)):
            if blocks < self.context_blocks:
                raise ValueError(
                    f"{pool}.blocks = {blocks}: one sequence of context_tokens = {self.context_tokens} needs "
                    f"{self.context_blocks} blocks of block_tokens = {self.block_tokens}"
                )
        return self
