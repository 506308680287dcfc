"""Write and read the network as DeepSeek publishes its checkpoints.

Projections are FP8 with block scales, the rest bf16; the MTP layer is last, with its copies of embedding and head.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.train.fp8 import dequantize_blocks, quantize_blocks
from models.train.network import MLP, Attention, Layer, MoE, Network, Shape

SHARD_BYTES = 11 * 2**20

_NORMS = ("input_layernorm", "post_attention_layernorm")
_ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _fp8(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    values, scale = quantize_blocks(weight)
    yield f"{name}.weight", values
    yield f"{name}.weight_scale_inv", scale


def _mlp(name: str, mlp: MLP) -> Iterator[tuple[str, Tensor]]:
    for projection in _PROJECTIONS:
        yield from _fp8(f"{name}.{projection}", getattr(mlp, projection).weight)


def _layer(name: str, layer: Layer) -> Iterator[tuple[str, Tensor]]:
    for norm in _NORMS:
        yield f"{name}.{norm}.weight", getattr(layer, norm).weight.bfloat16()
    attention: Attention = layer.self_attn
    for norm in ("q_a_layernorm", "kv_a_layernorm"):
        yield f"{name}.self_attn.{norm}.weight", getattr(attention, norm).weight.bfloat16()
    for projection in _ATTENTION:
        yield from _fp8(f"{name}.self_attn.{projection}", getattr(attention, projection).weight)
    if isinstance(layer.mlp, MLP):
        yield from _mlp(f"{name}.mlp", layer.mlp)
    elif isinstance(layer.mlp, MoE):
        gate, experts, channels = layer.mlp.gate, layer.mlp.experts, layer.mlp.expert_channels
        yield f"{name}.mlp.gate.weight", gate.weight.bfloat16()
        yield f"{name}.mlp.gate.e_score_correction_bias", gate.e_score_correction_bias.float()
        for expert in range(gate.weight.shape[0]):
            span = slice(expert * channels, (expert + 1) * channels)
            prefix = f"{name}.mlp.experts.{expert}"
            yield from _fp8(f"{prefix}.gate_proj", experts.gate_proj.weight[span])
            yield from _fp8(f"{prefix}.up_proj", experts.up_proj.weight[span])
            yield from _fp8(f"{prefix}.down_proj", experts.down_proj.weight[:, span])
        yield from _mlp(f"{name}.mlp.shared_experts", layer.mlp.shared_experts)


def checkpoint_tensors(network: Network) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of the whole checkpoint, in the order of the published files."""
    embedding, head = network.embed_tokens.weight.bfloat16(), network.lm_head.weight.bfloat16()
    yield "model.embed_tokens.weight", embedding
    for index, layer in enumerate(network.layers):
        yield from _layer(f"model.layers.{index}", layer)
    yield "model.norm.weight", network.norm.weight.bfloat16()
    yield "lm_head.weight", head
    mtp, name = network.mtp, f"model.layers.{network.shape.num_hidden_layers}"
    yield f"{name}.embed_tokens.weight", embedding.clone()
    for norm in ("enorm", "hnorm"):
        yield f"{name}.{norm}.weight", getattr(mtp, norm).weight.bfloat16()
    yield f"{name}.eh_proj.weight", mtp.eh_proj.weight.bfloat16()
    yield from _layer(name, mtp)
    yield f"{name}.shared_head.norm.weight", mtp.shared_head_norm.weight.bfloat16()
    yield f"{name}.shared_head.head.weight", head.clone()


@torch.no_grad()
def write_checkpoint(network: Network, folder: Path) -> int:
    """Write config.json, generation_config.json, shards and index into `folder`; returns the bytes of all shards."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [dict[str, Tensor]()], 0
    for name, tensor in checkpoint_tensors(network):
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    weight_map, total = dict[str, str](), 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        total += sum(t.nbytes for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(network.shape.config(), indent=2, sort_keys=True) + "\n")
    generation = {"bos_token_id": 0, "do_sample": True, "eos_token_id": 1, "temperature": 0.7, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return total


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint in fp32, FP8 weights dequantised; the scales themselves are left out."""
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stored = dict[str, Tensor]()
    for file in sorted(set(weight_map.values())):
        stored.update(load_file(folder / file))
    return {
        name: dequantize_blocks(tensor, stored[scale]) if (scale := f"{name}_scale_inv") in stored else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith("_scale_inv")
    }


def read_checkpoint(folder: Path) -> Network:
    """The network of a checkpoint that `write_checkpoint` wrote, in fp32 and ready to evaluate."""
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_scaling"]
    fields = {name: config[name] for name in Shape.__dataclass_fields__ if name in config}
    shape = Shape(
        **fields, rope_factor=rope["factor"], rope_original_max_position=rope["original_max_position_embeddings"]
    )
    network = Network(shape)
    # Walk the checkpoint's own order, so that each name is written down once.
    tensors, last = read_tensors(folder), f"model.layers.{shape.num_hidden_layers}."
    state = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if name in (f"{last}embed_tokens.weight", f"{last}shared_head.head.weight") or ".mlp.experts." in name:
            continue
        own = name.replace(last, "mtp.").replace("shared_head.norm", "shared_head_norm").removeprefix("model.")
        state[own] = tensor
    for prefix in {name.split(".experts.")[0] for name in tensors if ".mlp.experts." in name}:
        own = prefix.replace(last.removesuffix("."), "mtp").removeprefix("model.")
        for projection, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
            names = [f"{prefix}.experts.{e}.{projection}.weight" for e in range(shape.n_routed_experts)]
            state[f"{own}.experts.{projection}.weight"] = torch.cat([tensors[n] for n in names], dim=dim)
    network.load_state_dict(state)
    return network.eval()
