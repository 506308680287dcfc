"""Whole systems that others published. None of these numbers is fitted; all of them check."""

from dataclasses import dataclass

from loadgen.planner.deployment import DecodePlan, DecodePoint, decode_point
from loadgen.planner.hardware import hardware
from loadgen.planner.layer import Parallelism, Schedule
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.stacks import Stack
from loadgen.planner.step import prefill_pass

# Hottest rank over the mean at EP32 with 288 slots after rebalancing (TensorRT-LLM tech blog 4).
BALANCED_BY_COPIES = 1.11
# DeepSeek, day 6: 226.75 nodes on average, 278 at the peak. Pools are sized for the peak.
DAY_LOAD = 226.75 / 278
# Pollaczek-Khinchine for equal passes: the wait is as long as the pass when rho / (2 (1 - rho)) = 1.
QUEUE_LOAD = 2 / 3
_PREFILL_TOKENS = 16_384  # a GPU and pass, DeepSeek's profile; SGLang's blog uses the same
_DEEPSEEK_HITS = 0.563
# Mean cache length while decoding is prompt + output / 2, and outputs are 168 / 608 of inputs.
_DEEPSEEK_PROMPT = 4989 / (1 + 168 / 608 / 2)


@dataclass(frozen=True, slots=True)
class SystemPoint:
    """A published node throughput beside ours; `must_hold` marks the figures held to 25 %."""

    what: str
    conditions: str
    known: float
    predicted: float
    must_hold: bool

    @property
    def error(self) -> float:
        return self.predicted / self.known - 1


def system_points(stack: Stack) -> list[SystemPoint]:
    """DeepSeek's and SGLang's published throughputs in tokens/s a node, predicted with `stack` ("deepep-2025")."""
    points = []
    hit_tokens = _DEEPSEEK_HITS * _DEEPSEEK_PROMPT
    computed = prefill_node_tokens_per_s(stack, "h800", 32, _DEEPSEEK_PROMPT - hit_tokens, hit_tokens)
    online = computed / (1 - _DEEPSEEK_HITS) * DAY_LOAD * QUEUE_LOAD
    points.append(SystemPoint("DeepSeek online, prefill", "H800, EP32, 56.3 % hits, 24 h mean", 73_700, online, True))
    decode = fastest_at_speed(stack, "h800", 144, cached=4989, speed=20.0)
    about = f"H800, EP144, at least 20 tokens/s: batch {decode.batch}"
    points.append(SystemPoint("DeepSeek online, decode", about, 14_800, decode.node_tokens_per_s, True))
    profile = prefill_node_tokens_per_s(stack, "h800", 32, 4096, 0, balanced=True)
    points.append(SystemPoint("DeepSeek profile, prefill", "H800, EP32, 4K, balanced", 62_713, profile, False))
    decode = _decode(stack, "h800", 128, 128, 4096, balanced=True)
    about = "H800, EP128, batch 128, 4K, balanced"
    points.append(SystemPoint("DeepSeek profile, decode", about, 18_598, decode.node_tokens_per_s, False))
    for tokens, known, must in ((1024, 57_674, False), (2000, 52_300, True), (4096, 50_302, False)):
        ours = prefill_node_tokens_per_s(stack, "h100", 32, tokens, 0)
        points.append(SystemPoint("SGLang, prefill", f"H100, EP32, {tokens} tokens in", known, ours, must))
    ours = prefill_node_tokens_per_s(stack, "h100", 32, 4096, 0, balanced=True)
    points.append(SystemPoint("SGLang, prefill", "H100, EP32, 4096 tokens in, perfect balance", 59_337, ours, False))
    decode = _decode(stack, "h100", 72, 256, 2000)
    about = "H100, EP72, batch 256, 2,000 tokens in"
    points.append(SystemPoint("SGLang, decode", about, 22_300, decode.node_tokens_per_s, True))
    return points


def prefill_node_tokens_per_s(
    stack: Stack, gpu_name: str, ep: int, new_tokens: float, cached_tokens: float, *, balanced: bool = False
) -> float:
    """Computed prompt tokens of one node, passes of 16,384 tokens a GPU in two microbatches, back to back."""
    model, gpu = model_shape("deepseek-v3"), hardware(gpu_name)
    cut = Parallelism(ep, chance=False) if balanced else Parallelism(ep, 1, 32, BALANCED_BY_COPIES)
    step = prefill_pass(
        model, gpu, stack, cut, tokens=_PREFILL_TOKENS, prompt_tokens=new_tokens, cached_tokens=cached_tokens
    )
    return _PREFILL_TOKENS * gpu.gpus_per_node / step.total_us * 1e6


def fastest_at_speed(stack: Stack, gpu_name: str, ep: int, *, cached: float, speed: float) -> DecodePoint:
    """The largest batch, without speculation, whose requests still run at `speed` tokens/s."""
    low, high = 1, 256
    while high - low > 1:
        middle = (low + high) // 2
        point = _decode(stack, gpu_name, ep, middle, cached)
        low, high = (middle, high) if point.output_tokens_per_s >= speed else (low, middle)
    return _decode(stack, gpu_name, ep, low, cached)


def _decode(stack: Stack, gpu_name: str, ep: int, batch: int, cached: float, *, balanced: bool = False) -> DecodePoint:
    plan = DecodePlan(
        model_shape("deepseek-v3"),
        hardware(gpu_name),
        stack,
        cached_tokens=cached,
        draft_tokens=0,
        acceptance=0.0,
        redundant_experts=0 if balanced else 32,
        imbalance=1.0 if balanced else BALANCED_BY_COPIES,
    )
    schedule = Schedule.DUAL_MICROBATCH if batch > 1 else None
    return decode_point(plan, ep=ep, tp=1, batch=batch, schedule=schedule)
