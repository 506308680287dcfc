"""A prefill group: how many prompts it computes a second inside a bound on the time to the first token."""

from dataclasses import dataclass
from math import ceil, log, sqrt

from common.errors import InvalidInput
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import Parallelism, Schedule
from loadgen.planner.memory import prefill_memory
from loadgen.planner.model_shapes import ModelShape
from loadgen.planner.stacks import Stack
from loadgen.planner.step import StepTime, prefill_pass
from loadgen.planner.workload import Workload

# Above this no queue is stable in practice, whatever the formula says.
HIGHEST_LOAD = 0.9
PASS_TOKENS = (2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """One prefill group at the load that its latency bound allows.

    Attributes:
        ep, tp, pass_tokens: the cut, and new tokens an instance takes in one pass.
        step: time of a pass.
        load: share of its capacity at which the bound still holds.
        requests_per_s: prompts of one group at that load.
        ttft_mean_s, ttft_p90_s: time to the first token there.
        handoff_s, exposed_handoff_s: moving a mean prompt's latent, and what is left of that after prefill ends.
    """

    ep: int
    tp: int
    pass_tokens: int
    step: StepTime
    load: float
    requests_per_s: float
    ttft_mean_s: float
    ttft_p90_s: float
    handoff_s: float
    exposed_handoff_s: float

    @property
    def gpu_requests_per_s(self) -> float:
        return self.requests_per_s / self.ep


def prefill_point(
    model: ModelShape,
    gpu: Hardware,
    stack: Stack,
    cut: Parallelism,
    load: Workload,
    *,
    pass_tokens: int,
    ttft_s: float,
    instances: int | None = None,
) -> PrefillPoint | None:
    """The group at its highest load with a 90th-percentile first token inside `ttft_s`; None where none is low enough.

    A prompt waits for the pass in progress (half of one on average, nine tenths at p90), for those before it, and
    then for as many passes as its new tokens fill. The wait is Sakasegawa's for `instances` servers: arrivals Poisson,
    service as spread as the prompts are.

    Raises:
        InvalidInput: the cut cannot exist or does not fit in memory.
    """
    memory = prefill_memory(
        model, gpu, cut, tokens=pass_tokens, held_tokens=pass_tokens + load.input_mean, mtp=model.mtp_layers > 0
    )
    memory.require_fit("prefill.pass_tokens", pass_tokens)
    cached = load.input_mean * load.hit_rate
    step = prefill_pass(
        model,
        gpu,
        stack,
        cut,
        tokens=pass_tokens,
        prompt_tokens=load.new_mean,
        cached_tokens=cached,
        schedule=Schedule.DUAL_MICROBATCH,
    )
    pass_s = step.total_us / 1e6
    service_s = load.new_mean / pass_tokens * pass_s
    servers = instances or cut.dp
    idle_p90_s = idle_ttft_p90_s(load, pass_tokens, pass_s)
    own_mean_s = ceil(load.new_mean / pass_tokens) * pass_s

    def ttft_p90(rho: float) -> float:
        return idle_p90_s + log(10) * queue_wait_s(rho, servers, service_s, load.input_cv)

    if idle_p90_s > ttft_s:
        return None
    low, high = 0.0, HIGHEST_LOAD
    if ttft_p90(high) <= ttft_s:
        low = high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ttft_p90(middle) <= ttft_s else (low, middle)
    handoff_s = handoff_bytes(model, load.input_mean) / gpu.network_achieved_bytes_per_s.value
    last = min(pass_tokens, load.new_mean)
    exposed_s = handoff_bytes(model, last) / gpu.network_achieved_bytes_per_s.value
    return PrefillPoint(
        cut.ep,
        cut.tp,
        pass_tokens,
        step,
        low,
        low * cut.dp / service_s,
        0.5 * pass_s + queue_wait_s(low, servers, service_s, load.input_cv) + own_mean_s,
        ttft_p90(low),
        handoff_s,
        exposed_s,
    )


def idle_ttft_p90_s(load: Workload, pass_tokens: int, pass_s: float) -> float:
    """90th-percentile first token with nobody ahead: what is left of the pass in progress, then the prompt's own."""
    return (0.9 + ceil(load.input_p90 * (1 - load.hit_rate) / pass_tokens)) * pass_s


def queue_wait_s(load: float, servers: int, service_s: float, service_cv: float) -> float:
    """Mean wait before service (Sakasegawa 1977), Poisson arrivals: exact for one server, close for many."""
    if not 0 <= load < 1:
        raise InvalidInput("load", load, "at least 0 and below 1")
    return (1 + service_cv**2) / 2 * load ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load)) * service_s


def handoff_bytes(model: ModelShape, tokens: float) -> float:
    """Latent of `tokens` prompt tokens, the draft layer's included: 357 MB for 5,000 tokens of V3."""
    return tokens * model.latent_bytes_per_token(mtp=model.mtp_layers > 0)
