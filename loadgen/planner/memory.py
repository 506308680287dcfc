"""What one GPU must hold, to the byte, and the refusal of what does not fit."""

from dataclasses import dataclass

from common.errors import InvalidInput
from loadgen.planner.communication import token_bytes
from loadgen.planner.hardware import Hardware
from loadgen.planner.layer import Parallelism
from loadgen.planner.model_shapes import ModelShape

# Context, graphs, workspaces, fragmentation. Assumed; the report leaves 40 GB of 141 beside 100 GB of weights and
# finds room for about 100 requests of 351 MB, which leaves this.
RESERVE_BYTES = 4_000_000_000


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one GPU. The parts add up to `total_bytes` exactly."""

    experts_bytes: int
    attention_bytes: int
    other_weights_bytes: int
    cache_bytes: int
    exchange_bytes: int
    reserve_bytes: int
    capacity_bytes: int

    @property
    def weights_bytes(self) -> int:
        return self.experts_bytes + self.attention_bytes + self.other_weights_bytes

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.exchange_bytes + self.reserve_bytes

    @property
    def free_bytes(self) -> int:
        """Negative when it does not fit."""
        return self.capacity_bytes - self.total_bytes

    def require_fit(self, what: str, value: object) -> None:
        """Raises `InvalidInput` that says how the bytes divide."""
        if self.free_bytes < 0:
            raise InvalidInput(
                what,
                value,
                f"{self.capacity_bytes / 1e9:.0f} GB a GPU; needs {_gb(self.total_bytes)} = "
                f"weights {_gb(self.weights_bytes)} + cache {_gb(self.cache_bytes)} + "
                f"exchange {_gb(self.exchange_bytes)} + reserve {_gb(self.reserve_bytes)}",
            )


def decode_memory(
    model: ModelShape,
    gpu: Hardware,
    cut: Parallelism,
    *,
    batch: int,
    query_tokens: int,
    tokens_each: float,
    mtp: bool = False,
) -> MemoryUse:
    """Decode: `batch` requests of `tokens_each` cached tokens in each instance; every TP rank holds the same latent."""
    cut.check(model, gpu)
    kv_split = 1 if model.is_mla else min(cut.tp, model.kv_heads)
    cache = round(batch * tokens_each * model.latent_bytes_per_token(mtp=mtp) / kv_split)
    return _use(model, gpu, cut, cache, batch * query_tokens / cut.tp, mtp=mtp)


def prefill_memory(
    model: ModelShape, gpu: Hardware, cut: Parallelism, *, tokens: int, held_tokens: float, mtp: bool = False
) -> MemoryUse:
    """Prefill: `tokens` in one pass, `held_tokens` of latent (prompts in work and the prefix cache)."""
    cut.check(model, gpu)
    kv_split = 1 if model.is_mla else min(cut.tp, model.kv_heads)
    cache = round(held_tokens * model.latent_bytes_per_token(mtp=mtp) / kv_split)
    use = _use(model, gpu, cut, cache, 0, mtp=mtp)
    # Buffers of the bandwidth-tuned exchange: each token once out and once back, for the ranks of a node.
    out, back = token_bytes(model.hidden)
    exchange = round(tokens / cut.tp * gpu.gpus_per_node * (out + back)) if cut.ep > 1 else 0
    return MemoryUse(
        use.experts_bytes,
        use.attention_bytes,
        use.other_weights_bytes,
        use.cache_bytes,
        exchange,
        use.reserve_bytes,
        use.capacity_bytes,
    )


def _use(
    model: ModelShape, gpu: Hardware, cut: Parallelism, cache_bytes: int, sent_tokens: float, *, mtp: bool
) -> MemoryUse:
    slots = model.experts + cut.redundant_experts
    if slots % cut.ep:
        raise InvalidInput("ep", cut.ep, f"a divisor of the {slots} experts, copies included")
    moe_layers = model.moe_layers + (model.mtp_layers if mtp else 0)
    layers = model.layers + (model.mtp_layers if mtp else 0)
    attention = layers * attention_bytes(model, cut.tp)
    shared = model.shared_experts * model.expert_bytes() + model.gate_bytes()
    dense = sum(model.linear_weight_bytes(out, width) for out, width in model.dense_matrices())
    embeddings = 2 * model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)
    # The draft layer's projection [hidden, 2 hidden] and three norms; its embedding and head are the model's own.
    draft = model.mtp_layers * (2 * 2 * model.hidden**2 + 3 * 2 * model.hidden) if mtp else 0
    other = moe_layers * shared + (model.dense_layers * dense + embeddings) // cut.tp + draft + 2 * model.hidden
    out, back = token_bytes(model.hidden)
    # A receiver keeps room for every token of every rank at every expert it holds.
    exchange = round(slots * sent_tokens * (out + back)) if cut.ep > 1 else 0
    return MemoryUse(
        moe_layers * slots // cut.ep * model.expert_bytes(),
        attention,
        other,
        cache_bytes,
        exchange,
        RESERVE_BYTES,
        round(gpu.memory_bytes.value),
    )


def _gb(size_bytes: int) -> str:
    """GB with one decimal; what no machine holds in powers of ten, not in hundreds of digits."""
    gb = size_bytes / 1e9
    return f"{gb:.1f}" if gb < 1e6 else f"{gb:.1e}"


def attention_bytes(model: ModelShape, tp: int) -> int:
    """Attention weights of one layer on one rank: per-head matrices are split, those that make the latent are not."""
    norms = 2 * model.attention_norms()
    if not model.is_mla:
        return sum(model.linear_weight_bytes(o, i) for o, i in model.attention_matrices()) // tp + norms
    whole = {(model.latent_values, model.hidden), (model.q_lora_rank, model.hidden)}
    total = norms
    for out, width in model.attention_matrices():
        size = model.linear_weight_bytes(out, width)
        total += size if (out, width) in whole else size // tp
    return total


def max_batch(
    model: ModelShape, gpu: Hardware, cut: Parallelism, *, query_tokens: int, tokens_each: float, mtp: bool = False
) -> int:
    """Most requests of an instance that fit; 0 when not even the weights do."""

    def fits(batch: int) -> bool:
        use = decode_memory(model, gpu, cut, batch=batch, query_tokens=query_tokens, tokens_each=tokens_each, mtp=mtp)
        return use.free_bytes >= 0

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 20:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
