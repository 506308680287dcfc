"""How the autoscaler finds, judges and changes the pools of a cluster that Kubernetes runs."""

from typing import Literal

from pydantic import Field, model_validator

from common.config.section import Section


class PoolScaling(Section):
    """Bounds of one pool, in EP groups."""

    min_groups: int = Field(default=1, ge=0)
    max_groups: int = Field(default=0, ge=0)  # 0: as many as the pool's `parallel.groups`

    @model_validator(mode="after")
    def _ordered(self) -> "PoolScaling":
        if 0 < self.max_groups < self.min_groups:
            raise ValueError(f"min_groups = {self.min_groups}: at most max_groups = {self.max_groups}")
        return self


class AutoscalerConfig(Section):
    """Bounds are what clients shall see; the rest says how patiently they are pursued."""

    host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)
    schedulers: tuple[str, ...] = ()  # host:port; every address of a name is asked. (): the file's own scheduler

    group_controller: Literal["LeaderWorkerSet", "StatefulSet"] = "LeaderWorkerSet"
    selector: str = "app.kubernetes.io/part-of=tandem"  # of the pools' objects; the component label says which pool
    lease_name: str = Field(default="tandem-autoscaler", min_length=1)
    lease_duration_s: float = Field(default=15.0, gt=0)  # who has not renewed for so long leads no more
    lease_renew_s: float = Field(default=5.0, gt=0)
    api_timeout_s: float = Field(default=5.0, gt=0)  # of one call to the API server

    prefill: PoolScaling = PoolScaling()
    decode: PoolScaling = PoolScaling()
    gpus_limit: int = Field(default=0, ge=0)  # of both pools together; 0: none

    ttft_s: float = Field(default=2.0, gt=0)  # predicted wait for a first token that is still good
    itl_ms: float = Field(default=50.0, gt=0)  # a decode step that is still good
    prefill_busy_limit: float = Field(default=0.8, gt=0, le=1)  # share of time with work
    decode_use_limit: float = Field(default=0.8, gt=0, le=1)  # share of seats, or of blocks

    interval_s: float = Field(default=5.0, gt=0)
    stale_after_s: float = Field(default=15.0, gt=0)  # older load reports take nothing away
    up_after_s: float = Field(default=20.0, ge=0)  # more is needed for so long without a break
    up_cooldown_s: float = Field(default=60.0, ge=0)
    down_after_s: float = Field(default=600.0, ge=0)  # less is enough for so long without a break
    down_cooldown_s: float = Field(default=300.0, ge=0)  # after any change of the pool
    shift_after_s: float = Field(default=120.0, ge=0)  # one pool lacks what the other can spare
    shift_cooldown_s: float = Field(default=900.0, ge=0)
    hold_s: float = Field(default=30.0, gt=0)  # how long schedulers keep a group empty without being asked again
    idle_for_s: float = Field(default=15.0, ge=0)  # a group is taken away once it had no work for so long
    drain_limit_s: float = Field(default=3600.0, gt=0)  # a group that is not idle by then goes back to work

    @model_validator(mode="after")
    def _in_time(self) -> "AutoscalerConfig":
        if self.lease_duration_s <= self.lease_renew_s + self.api_timeout_s:
            raise ValueError(
                f"lease_duration_s = {self.lease_duration_s}: must be over lease_renew_s + api_timeout_s = "
                f"{self.lease_renew_s + self.api_timeout_s}"
            )
        if self.hold_s < 2 * self.interval_s:
            raise ValueError(f"hold_s = {self.hold_s}: at least twice interval_s = {self.interval_s}")
        return self
