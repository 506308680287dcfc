"""Checkpoints as they should be, and broken in every way that happens."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import CheckpointError
from common.model.checkpoint import Checkpoint
from common.model.fingerprint import model_fingerprint
from common.model.load import load_model
from kernels.fp8_block_ref import dequantize_block, quantize_block
from tests.oracle.checkpoint_files import random_tensors, write_checkpoint
from tests.oracle.configurations import configuration
from tests.oracle.zoo import Zoo

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def copy(zoo: Zoo, tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    directory = tmp_path / "copy"
    shutil.copytree(zoo.checkpoint("base"), directory)
    return directory


def tensors_of(directory: Path, name: str) -> Path:
    """The shard that holds a tensor."""
    weight_map: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return directory / weight_map[name]


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_one_file_instead_of_shards(zoo: Zoo, tmp_path: Path) -> None:
    fields = configuration("base")
    write_checkpoint(tmp_path, fields, {})
    for file in tmp_path.glob("model*"):
        file.unlink()
    save_file(random_tensors(fields), tmp_path / "model.safetensors")
    ours, sharded = load_model(tmp_path), load_model(zoo.checkpoint("base"))
    row = torch.randn(1, 256)
    assert torch.equal(ours.logits(row), sharded.logits(row))


@pytest.mark.parametrize(("rows", "columns"), [(300, 200), (128, 128), (1, 1), (576, 129), (192, 96)])
def test_fp8_parts_are_exact_at_any_edge(tmp_path: Path, rows: int, columns: int) -> None:
    """Any slice of a tensor equals the same slice of the whole, and the whole equals value times its block's scale."""
    weight, scale = quantize_block(torch.randn(rows, columns) * torch.logspace(-3, 3, rows)[:, None])
    save_file({"w": weight, "w_scale_inv": scale}, tmp_path / "model.safetensors")
    whole = weight.float() * scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    assert torch.equal(dequantize_block(weight, scale), whole)
    with Checkpoint(tmp_path) as checkpoint:
        assert torch.equal(checkpoint.read("w", (rows, columns)), whole)
        for start, stop in ((0, rows), (rows // 3, rows), (rows // 2, rows // 2 + 1), (0, rows // 2 + 1)):
            part = checkpoint.read("w", (rows, columns), rows=range(start, stop))
            assert torch.equal(part, whole[start:stop])
        for start, stop in ((columns // 3, columns), (0, columns // 2 + 1)):
            part = checkpoint.read("w", (rows, columns), columns=range(start, stop))
            assert torch.equal(part, whole[:, start:stop])


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / FIRST).unlink()
    with pytest.raises(CheckpointError, match=rf"{FIRST}: shard is missing"):
        load_model(copy)


@pytest.mark.parametrize("lost_bytes", [1, 70_000])
def test_a_truncated_shard_is_named_with_the_first_lost_tensor(copy: Path, lost_bytes: int) -> None:
    size = (copy / FIRST).stat().st_size
    with (copy / FIRST).open("rb+") as file:
        file.truncate(size - lost_bytes)
    with pytest.raises(CheckpointError, match=rf"{FIRST}: is {size - lost_bytes} bytes .* first lost: model\."):
        load_model(copy)


@pytest.mark.parametrize("keep", [0, 5, 100])
def test_a_shard_without_its_header(copy: Path, keep: int) -> None:
    with (copy / FIRST).open("rb+") as file:
        file.truncate(keep)
    with pytest.raises(CheckpointError, match=rf"{FIRST}: cut short or not safetensors \({keep} bytes\)"):
        load_model(copy)


def test_a_shard_that_is_something_else(copy: Path) -> None:
    (copy / FIRST).write_bytes(b"\x10\0\0\0\0\0\0\0" + b"not json at all!")
    with pytest.raises(CheckpointError, match=rf"{FIRST}: header is not safetensors"):
        load_model(copy)


def test_a_tensor_that_the_index_promises_and_the_shard_lacks(copy: Path) -> None:
    name = "model.layers.2.mlp.experts.3.up_proj.weight"
    rewrite(file := tensors_of(copy, name), lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=rf"{file.name}: lacks {name}"):
        load_model(copy)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.4.eh_proj.weight", "model.layers.3.mlp.gate.e_score_correction_bias"]
)
def test_a_missing_tensor_is_named(copy: Path, name: str) -> None:
    index = json.loads((copy / INDEX).read_text())
    del index["weight_map"][name]
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        load_model(copy)


def test_a_wrong_shape_is_named(copy: Path) -> None:
    name = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
    file = tensors_of(copy, name)
    rewrite(file, lambda tensors: tensors.update({name: torch.zeros(80, 255)}))
    with pytest.raises(CheckpointError, match=rf"{file.name}: {name} has shape \(80, 255\): must be \(80, 256\)"):
        load_model(copy)


def test_a_type_that_is_no_float_is_named(copy: Path) -> None:
    name = "model.norm.weight"
    rewrite(tensors_of(copy, name), lambda tensors: tensors.update({name: torch.zeros(256, dtype=torch.int32)}))
    with pytest.raises(CheckpointError, match=rf"{name} is I32"):
        load_model(copy)


def test_a_missing_scale_is_named(zoo: Zoo, tmp_path: Path) -> None:
    directory = tmp_path / "fp8"
    shutil.copytree(zoo.fp8_checkpoint("base"), directory)
    name = "model.layers.1.self_attn.o_proj.weight"
    index = json.loads((directory / INDEX).read_text())
    del index["weight_map"][f"{name}_scale_inv"]
    (directory / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"{name} is FP8 and {name}_scale_inv is missing"):
        load_model(directory)


def test_a_scale_of_the_wrong_shape_is_named(zoo: Zoo, tmp_path: Path) -> None:
    directory = tmp_path / "fp8"
    shutil.copytree(zoo.fp8_checkpoint("base"), directory)
    name = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    rewrite(tensors_of(directory, name), lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(2, 2\): must be \(2, 1\)"):
        load_model(directory)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x.safetensors"}}'])
def test_a_broken_index_is_named(copy: Path, content: str) -> None:
    (copy / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX.replace(".", r"\.")):
        load_model(copy)


def test_no_checkpoint_at_all(copy: Path) -> None:
    for file in copy.glob("model*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors\.index\.json nor"):
        load_model(copy)
    with pytest.raises(CheckpointError, match="shard is missing"):
        model_fingerprint(copy)


def test_the_fingerprint_names_these_weights(zoo: Zoo, copy: Path, tmp_path: Path) -> None:
    original = zoo.checkpoint("base")
    fingerprint = model_fingerprint(original)
    assert len(fingerprint) == 32
    assert model_fingerprint(copy) == fingerprint
    # The same architecture with other weights, one changed setting, and FP8 are other models.
    other = tmp_path / "other"
    write_checkpoint(other, configuration("base"), random_tensors(configuration("base"), seed=1))
    assert model_fingerprint(other) != fingerprint
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    assert model_fingerprint(copy) == fingerprint
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 20000}))
    assert model_fingerprint(copy) != fingerprint
    assert model_fingerprint(zoo.fp8_checkpoint("base")) != fingerprint
