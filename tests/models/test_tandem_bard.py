"""The demonstration checkpoint: complete, small enough, in DeepSeek's format, and able to write English."""

import json
import math
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, DeepseekV3ForCausalLM
from transformers.modeling_layers import MtpModel

from models.train.checkpoint import read_checkpoint
from models.train.evaluate import Acceptance, walk

BARD = Path(__file__).parents[2] / "models/tandem-bard"
MIB = 2**20
LAYERS, EXPERTS, HEADS, HIDDEN, VOCAB = 4, 16, 4, 384, 2048

# Neither passage is in the training text: 1 Kings 18 in the King James Bible and Mansfield Park, chapter 27.
HELD_OUT = (
    "And it came to pass after many days, that the word of the LORD came to Elijah in the third year, saying, Go,"
    " shew thyself unto Ahab; and I will send rain upon the earth.\nAnd Elijah went to shew himself unto Ahab. "
    "And there was a sore famine in Samaria.\nAnd Ahab called Obadiah, which was the governor of his house. (Now "
    "Obadiah feared the LORD greatly:\nFor it was so, when Jezebel cut off the prophets of the LORD, that Obadiah"
    " took an hundred prophets, and hid them by fifty in a cave, and fed them with bread and water.)",
    "On reaching home Fanny went immediately upstairs to deposit this unexpected acquisition, this doubtful good "
    "of a necklace, in some favourite box in the East room, which held all her smaller treasures; but on opening "
    "the door, what was her surprise to find her cousin Edmund there writing at the table! Such a sight having "
    "never occurred before, was almost as wonderful as it was welcome.",
)
COMMON_WORDS = """
a all and are as at be but by for from god had have he her him his i in is it lord me my no not of or our shall she
so that the their them they this thou thy to unto upon was we were when which who will with you your
"""


class WithMtp(DeepseekV3ForCausalLM):
    """transformers knows the MTP layer only at V3's own index, 61."""

    _keys_to_ignore_on_load_unexpected: ClassVar = [rf"model\.layers\.{LAYERS}\."]


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    """Every stored tensor by name."""
    files = sorted(BARD.glob("model-*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def dequantised(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """fp32 weights; a scale covers rows and columns 128 at a time, the last block of a side may be partial."""
    weights = dict[str, Tensor]()
    for name, tensor in stored.items():
        if tensor.dtype == torch.float8_e4m3fn:
            rows, columns = tensor.shape
            scale = stored[f"{name}_scale_inv"]
            wide = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            weights[name] = tensor.float() * wide
        elif not name.endswith("_scale_inv"):
            weights[name] = tensor.float()
    return weights


@pytest.fixture(scope="module")
def oracle(stored: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> DeepseekV3ForCausalLM:
    """transformers' own DeepSeek-V3 over the dequantised weights, in fp32."""
    folder = tmp_path_factory.mktemp("bard")
    save_file(dequantised(stored), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((BARD / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return WithMtp.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BARD / "tokenizer.json"))


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published format for this configuration, scales left out."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    shapes |= {"lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}

    def mlp(prefix: str, channels: int) -> None:
        shapes[f"{prefix}.gate_proj.weight"] = shapes[f"{prefix}.up_proj.weight"] = (channels, HIDDEN)
        shapes[f"{prefix}.down_proj.weight"] = (HIDDEN, channels)

    for layer in range(LAYERS + 1):
        name = f"model.layers.{layer}"
        attention = f"{name}.self_attn"
        shapes[f"{name}.input_layernorm.weight"] = shapes[f"{name}.post_attention_layernorm.weight"] = (HIDDEN,)
        shapes[f"{attention}.q_a_proj.weight"] = (256, HIDDEN)
        shapes[f"{attention}.q_a_layernorm.weight"] = (256,)
        shapes[f"{attention}.q_b_proj.weight"] = (HEADS * 192, 256)
        shapes[f"{attention}.kv_a_proj_with_mqa.weight"] = (576, HIDDEN)
        shapes[f"{attention}.kv_a_layernorm.weight"] = (512,)
        shapes[f"{attention}.kv_b_proj.weight"] = (HEADS * 256, 512)
        shapes[f"{attention}.o_proj.weight"] = (HIDDEN, HEADS * 128)
        if layer == 0:
            mlp(f"{name}.mlp", 1024)
            continue
        shapes[f"{name}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
        shapes[f"{name}.mlp.gate.e_score_correction_bias"] = (EXPERTS,)
        mlp(f"{name}.mlp.shared_experts", 128)
        for expert in range(EXPERTS):
            mlp(f"{name}.mlp.experts.{expert}", 128)
    mtp = f"model.layers.{LAYERS}"
    shapes |= {f"{mtp}.{norm}.weight": (HIDDEN,) for norm in ("enorm", "hnorm", "shared_head.norm")}
    shapes[f"{mtp}.eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
    shapes[f"{mtp}.embed_tokens.weight"] = shapes[f"{mtp}.shared_head.head.weight"] = (VOCAB, HIDDEN)
    return shapes


def test_every_tensor_of_the_published_format_is_there(stored: dict[str, Tensor]) -> None:
    weights = {name: tuple(t.shape) for name, t in stored.items() if not name.endswith("_scale_inv")}
    assert weights == expected_shapes()
    index = json.loads((BARD / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(stored)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in stored.values())
    for file in set(index["weight_map"].values()):
        assert set(load_file(BARD / file)) == {name for name, f in index["weight_map"].items() if f == file}


def test_size_limits() -> None:
    shards = [file.stat().st_size for file in BARD.glob("*.safetensors")]
    assert max(shards) <= 12 * MIB
    assert sum(file.stat().st_size for file in BARD.iterdir()) <= 24 * MIB


def test_projections_are_fp8_with_a_scale_per_block(stored: dict[str, Tensor]) -> None:
    for name, tensor in stored.items():
        if name.endswith("_scale_inv"):
            weight = stored[name.removesuffix("_scale_inv")]
            assert tensor.dtype == torch.float32
            assert tuple(tensor.shape) == tuple(math.ceil(side / 128) for side in weight.shape), name
            assert bool((tensor > 0).all())
        elif "_proj" in name and "eh_proj" not in name:
            assert tensor.dtype == torch.float8_e4m3fn
            assert f"{name}_scale_inv" in stored
        elif name.endswith("e_score_correction_bias"):
            assert tensor.dtype == torch.float32
            assert tensor.abs().max() > 0.01, "balancing left the bias at zero: routing mistakes would not show"
        else:
            assert tensor.dtype == torch.bfloat16


def test_every_block_uses_the_whole_range_of_e4m3(stored: dict[str, Tensor]) -> None:
    # The largest value of a block is 448 by construction; a scale of the wrong block, edge blocks too, breaks this.
    for layer in range(LAYERS + 1):
        weight = stored[f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight"].float()
        assert weight.shape == (576, HIDDEN)
        assert stored[f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight_scale_inv"].shape == (5, 3)
        for rows in weight.split(128):
            for block in rows.split(128, dim=1):
                assert block.abs().max() == 448.0
        assert weight[512:].shape == (64, HIDDEN)


def test_the_mtp_layer_repeats_embedding_and_head(stored: dict[str, Tensor]) -> None:
    mtp = f"model.layers.{LAYERS}"
    assert torch.equal(stored[f"{mtp}.embed_tokens.weight"], stored["model.embed_tokens.weight"])
    assert torch.equal(stored[f"{mtp}.shared_head.head.weight"], stored["lm_head.weight"])


@pytest.mark.parametrize("text", ["", "In the beginning\n\n", "naïve – 1234567", "👩‍👩‍👧‍👦 한국어 \x00\t ", *HELD_OUT])
def test_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_and_ids_without_a_token(tokenizer: Tokenizer) -> None:
    spelled = {0: "<｜begin▁of▁sentence｜>", 1: "<｜end▁of▁sentence｜>", 2: "<｜▁pad▁｜>"}
    spelled |= {2036: "<think>", 2037: "</think>", 2038: "<｜User｜>", 2039: "<｜Assistant｜>"}
    assert {i: tokenizer.id_to_token(i) for i in spelled} == spelled
    assert tokenizer.get_vocab_size() == 2040
    assert tokenizer.id_to_token(2040) is None
    assert json.loads((BARD / "config.json").read_text())["vocab_size"] == VOCAB


def test_chat_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BARD)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "<think>\nI?\n</think>\n\nI."},
        {"role": "user", "content": "Why?"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Who?<｜Assistant｜>I.<｜end▁of▁sentence｜>"
        "<｜User｜>Why?<｜Assistant｜>"
    )
    thinking = tokenizer.apply_chat_template(messages[1:2], tokenize=False, add_generation_prompt=True, thinking=True)
    assert thinking == "<｜begin▁of▁sentence｜><｜User｜>Who?<｜Assistant｜><think>\n"


@pytest.mark.parametrize(("passage", "limit"), [(HELD_OUT[0], 13.5), (HELD_OUT[1], 34.0)])
def test_held_out_perplexity(oracle: DeepseekV3ForCausalLM, tokenizer: Tokenizer, passage: str, limit: float) -> None:
    ids = torch.tensor([[0, *tokenizer.encode(passage).ids]])
    with torch.no_grad():
        nats = cross_entropy(oracle(ids).logits[0, :-1], ids[0, 1:]).item()
    assert math.exp(nats) < limit


def test_it_continues_in_english(oracle: DeepseekV3ForCausalLM, tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    prompt = torch.tensor([tokenizer.encode("In the beginning").ids])
    ids = oracle.generate(prompt, max_new_tokens=60, do_sample=True, temperature=0.7, top_k=0, eos_token_id=None)
    words = re.findall(r"[a-z']+", tokenizer.decode(ids[0].tolist()).lower())
    # Half of running English is made of few words; nothing but English has this share of them.
    assert len(words) > 20
    common = set(COMMON_WORDS.split())
    assert sum(word in common for word in words) > 0.35 * len(words)


def test_the_training_network_is_deepseek_v3(oracle: DeepseekV3ForCausalLM, tokenizer: Tokenizer) -> None:
    ids = torch.tensor([tokenizer.encode(HELD_OUT[0]).ids])
    mtp = MtpModel.from_pretrained(oracle)
    positions = torch.arange(1, ids.shape[1])[None]
    with torch.no_grad():
        main, draft = read_checkpoint(BARD)(ids)
        expected = oracle(ids, output_hidden_states=True)
        hidden = mtp.forward_layer(0, expected.hidden_states[-1][:, :-1], positions, None, input_ids=ids[:, 1:])
        expected_draft = oracle.lm_head(hidden)
    torch.testing.assert_close(main, expected.logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(draft, expected_draft, atol=1e-4, rtol=0)


def test_drafts_are_counted_where_a_decoder_makes_them() -> None:
    # Token 0 is prefill's. A step commits the token it drafted for, and one more if the draft was right: 1 2 | 3 | 4 5.
    assert walk([False, True, False, False, True, False]) == Acceptance(drafted=3, accepted=2)
    assert walk([True] * 9) == Acceptance(drafted=4, accepted=4)
    assert walk([False] * 5) == Acceptance(drafted=4, accepted=0)
