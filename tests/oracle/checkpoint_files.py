"""Random weights under DeepSeek's names, written as DeepSeek publishes them: shards with an index, FP8 or fp32."""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernels.fp8_block_ref import dequantize_block, quantize_block

WEIGHT_STD = 0.06
BIAS_STD = 0.1  # a bias of zero hides every routing mistake


def random_tensors(fields: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint in fp32. A tensor's values depend on its name and the seed alone."""
    return {name: _random(name, shape, seed) for name, shape in tensor_shapes(fields).items()}


def tensor_shapes(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    vocab, hidden, layers = fields["vocab_size"], fields["hidden_size"], fields["num_hidden_layers"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(layers):
        shapes |= _layer_shapes(fields, layer)
    for layer in range(layers, layers + fields["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= _layer_shapes(fields, layer) | {
            f"{prefix}.embed_tokens.weight": (vocab, hidden),
            f"{prefix}.enorm.weight": (hidden,),
            f"{prefix}.hnorm.weight": (hidden,),
            f"{prefix}.eh_proj.weight": (hidden, 2 * hidden),
            f"{prefix}.shared_head.norm.weight": (hidden,),
            f"{prefix}.shared_head.head.weight": (vocab, hidden),
        }
    return shapes


def quantized(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layers' projections as FP8 with their scales; embedding, head, norms, gate and eh_proj stay as they are."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "_proj" in name and "eh_proj" not in name:
            stored[name], stored[f"{name}_scale_inv"] = quantize_block(tensor)
        else:
            stored[name] = tensor
    return stored


def dequantized(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `quantized` tensors stand for, in fp32."""
    return {
        name: dequantize_block(tensor, stored[f"{name}_scale_inv"]) if f"{name}_scale_inv" in stored else tensor
        for name, tensor in stored.items()
        if not name.endswith("_scale_inv")
    }


def write_checkpoint(
    directory: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int = 2
) -> Path:
    """config.json, `shards` safetensors files and their index."""
    directory.mkdir(parents=True, exist_ok=True)
    fp8 = any(name.endswith("_scale_inv") for name in tensors)
    quantization = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
    (directory / "config.json").write_text(json.dumps(fields | (quantization if fp8 else {}), indent=2))
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = sorted(tensors)[shard::shards]
        save_file({name: tensors[name].contiguous() for name in names}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def _layer_shapes(fields: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    nope, rope, v = fields["qk_nope_head_dim"], fields["qk_rope_head_dim"], fields["v_head_dim"]
    kv_lora, q_lora, experts = fields["kv_lora_rank"], fields["q_lora_rank"], fields["n_routed_experts"]
    moe = fields["moe_intermediate_size"]
    prefix = f"model.layers.{layer}"
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.kv_a_proj_with_mqa": (kv_lora + rope, hidden),
        "self_attn.kv_a_layernorm": (kv_lora,),
        "self_attn.kv_b_proj": (heads * (nope + v), kv_lora),
        "self_attn.o_proj": (hidden, heads * v),
    }
    if q_lora is None:
        shapes["self_attn.q_proj"] = (heads * (nope + rope), hidden)
    else:
        shapes["self_attn.q_a_proj"] = (q_lora, hidden)
        shapes["self_attn.q_a_layernorm"] = (q_lora,)
        shapes["self_attn.q_b_proj"] = (heads * (nope + rope), q_lora)
    if layer < fields["first_k_dense_replace"]:
        shapes |= _mlp_shapes("mlp", hidden, fields["intermediate_size"])
        return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}
    shapes["mlp.gate"] = (experts, hidden)
    for expert in range(experts):
        shapes |= _mlp_shapes(f"mlp.experts.{expert}", hidden, moe)
    shapes |= _mlp_shapes("mlp.shared_experts", hidden, moe * fields["n_shared_experts"])
    named = {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}
    if fields["topk_method"] == "noaux_tc":
        named[f"{prefix}.mlp.gate.e_score_correction_bias"] = (experts,)
    return named


def _mlp_shapes(prefix: str, hidden: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj": (intermediate, hidden),
        f"{prefix}.up_proj": (intermediate, hidden),
        f"{prefix}.down_proj": (hidden, intermediate),
    }


def _random(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    if name.endswith("shared_head.head.weight"):
        name = "lm_head.weight"  # stored twice, as published
    elif name.endswith("embed_tokens.weight"):
        name = "model.embed_tokens.weight"
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + WEIGHT_STD * values
    return values * (BIAS_STD if "bias" in name else WEIGHT_STD)
