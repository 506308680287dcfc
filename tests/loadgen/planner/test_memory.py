"""Memory, to the byte."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidInput
from loadgen.planner.hardware import hardware
from loadgen.planner.layer import Parallelism
from loadgen.planner.memory import decode_memory, max_batch, prefill_memory
from loadgen.planner.model_shapes import model_shape

V3, H200 = model_shape("deepseek-v3"), hardware("h200")


def test_a_node_of_h200s_holds_the_model_and_about_a_hundred_requests():
    cut = Parallelism(8)
    use = decode_memory(V3, H200, cut, batch=100, query_tokens=2, tokens_each=5000)
    assert use.weights_bytes / 1e9 == pytest.approx(100, rel=0.03)
    assert 90 <= max_batch(V3, H200, cut, query_tokens=2, tokens_each=5000) <= 110
    full = decode_memory(V3, H200, cut, batch=128, query_tokens=2, tokens_each=5000)
    with pytest.raises(InvalidInput, match="141 GB a GPU; needs"):
        full.require_fit("batch", 128)


def test_a_node_of_h100s_does_not_hold_the_model():
    assert max_batch(V3, hardware("h100"), Parallelism(8), query_tokens=1, tokens_each=1) == 0


def test_weights_of_the_demonstration_model_are_its_checkpoint_to_the_byte():
    folder = Path(__file__).parents[3] / "models/tandem-bard"
    shape = model_shape(str(folder))
    use = decode_memory(shape, H200, Parallelism(1), batch=1, query_tokens=1, tokens_each=0, mtp=True)
    # On disk the draft layer has its own copies of embedding and head; in memory they are shared.
    copies = 2 * 2 * shape.vocabulary * shape.hidden
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert use.weights_bytes + copies == index["metadata"]["total_size"]


def test_weights_without_parallelism_are_the_checkpoint():
    use = decode_memory(V3, H200, Parallelism(1), batch=1, query_tokens=1, tokens_each=0)
    embeddings = 2 * V3.vocabulary * V3.hidden
    # FP8 values are one byte a parameter; embeddings, head, gate and norms two; scales 4 bytes a block.
    parameters = V3.parameters()
    assert use.weights_bytes == pytest.approx(parameters + embeddings, rel=0.001)
    assert use.exchange_bytes == 0


@given(
    ep=st.sampled_from([8, 16, 32, 64, 128]),
    tp=st.sampled_from([1, 2, 4, 8]),
    batch=st.integers(1, 512),
    cached=st.integers(0, 100_000),
)
@settings(max_examples=50, deadline=None)
def test_parts_add_up_to_the_byte(ep, tp, batch, cached):
    use = decode_memory(V3, H200, Parallelism(ep, tp), batch=batch, query_tokens=2, tokens_each=cached)
    parts = (
        use.experts_bytes,
        use.attention_bytes,
        use.other_weights_bytes,
        use.cache_bytes,
        use.exchange_bytes,
        use.reserve_bytes,
    )
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert sum(parts) == use.total_bytes == use.capacity_bytes - use.free_bytes
    assert use.cache_bytes == batch * cached * 70_272
    assert use.experts_bytes == 58 * 256 // ep * V3.expert_bytes()


def test_copies_of_experts_take_their_room():
    plain = decode_memory(V3, H200, Parallelism(32), batch=1, query_tokens=1, tokens_each=1)
    copied = decode_memory(V3, H200, Parallelism(32, 1, 32), batch=1, query_tokens=1, tokens_each=1)
    assert copied.experts_bytes - plain.experts_bytes == 58 * V3.expert_bytes()


def test_prefill_holds_its_pass_and_its_prefixes():
    cut = Parallelism(32)
    small = prefill_memory(V3, H200, cut, tokens=4096, held_tokens=4096)
    large = prefill_memory(V3, H200, cut, tokens=16384, held_tokens=16384)
    assert large.cache_bytes == 4 * small.cache_bytes
    assert large.exchange_bytes == 4 * small.exchange_bytes
