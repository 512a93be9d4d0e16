"""Checkpoints of block drafters: layouts, quantisation, and errors that name file and tensor."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from dflash_checkpoints import FULL, SLIDING, Tensors, first_config, random_tensors, second_config, write
from drafter_rig import DrafterCase, Rig
from mlx.utils import tree_flatten

from api.errors import ModelError
from bench.families import tiny_model
from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.drafters.dflash.backbone import Backbone
from worker.engine.drafters.dflash.checkpoint import load_backbone
from worker.engine.drafters.dflash.config import read_dflash_config
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

TOKENS = [5, 17, 3, 88, 41, 9, 9, 60]


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model("llama")


@pytest.fixture
def config() -> dict[str, Any]:
    return second_config([SLIDING, FULL], target_layers=3)


@pytest.fixture
def tensors(config: dict[str, Any]) -> Tensors:
    return random_tensors(config)


def draft(directory: Path, target: Any, settings: DFlashSettings | None = None) -> TokenTree:
    rig = Rig(DrafterCase(target, lambda: load_dflash(directory, target, settings), 97))
    rig.prompt(TOKENS)
    return rig.draft(DraftLimits(24, 8))


def error(directory: Path, target: Any) -> str:
    with pytest.raises(ModelError) as raised:
        load_dflash(directory, target)
    return str(raised.value)


def backbone(directory: Path, bits: int | None = None) -> Backbone:
    return load_backbone(directory, read_dflash_config(directory), bits)


def test_prefixes_and_suffixes_of_converters_change_nothing(
    target: Any, config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    plain = draft(write(tmp_path / "plain", config, tensors), target)
    renamed = {
        "model." + name + (".weight" if name.endswith("codebook") else ""): tensor for name, tensor in tensors.items()
    }
    other = draft(write(tmp_path / "renamed", config, renamed, files=3), target)
    assert len(plain) > 10
    assert (other.tokens, other.parents, other.confidences) == (plain.tokens, plain.parents, plain.confidences)


def quantised(backbone: Backbone) -> set[str]:
    """Names of the parts that are quantised, without the numbers of layers."""
    return {
        path.split(".", 2)[-1] if path.startswith("layers.") else path
        for path, module in backbone.named_modules()
        if isinstance(module, nn.QuantizedLinear)
    }


@pytest.mark.parametrize(("bits", "allowed"), [(8, 0.01), (4, 0.1)])
def test_the_matrices_of_the_network_can_be_quantised_at_load(
    config: dict[str, Any], tensors: Tensors, tmp_path: Path, bits: int, allowed: float
) -> None:
    directory = write(tmp_path, config, tensors)
    dense, loaded = backbone(directory), backbone(directory, bits)
    # `mlp.down_proj` has 96 inputs, which groups of 64 do not divide.
    attention = {f"self_attn.{name}_proj" for name in "qkvo"}
    assert quantised(loaded) == {"fc", "mlp.gate_proj", "mlp.up_proj"} | attention
    own, expected = dict(tree_flatten(loaded.parameters())), dict(tree_flatten(dense.parameters()))
    for name, parameter in expected.items():
        if name in own and own[name].dtype == parameter.dtype:
            assert mx.array_equal(own[name], parameter), name
    hidden = mx.random.normal((4, 192), key=mx.random.key(1))
    difference = mx.linalg.norm(loaded.fc(hidden) - dense.fc(hidden)) / mx.linalg.norm(dense.fc(hidden))
    assert 0 < difference.item() < allowed


@pytest.mark.parametrize("bits", [4, 8])
def test_a_checkpoint_may_be_stored_quantised(
    config: dict[str, Any], tensors: Tensors, tmp_path: Path, bits: int
) -> None:
    stored: dict[str, Any] = {}
    for name, tensor in tensors.items():
        stored[name] = tensor
        if name.endswith("_proj.weight") and "down" not in name:
            path = name.removesuffix(".weight")
            parts = mx.quantize(mx.array(tensor), group_size=32, bits=bits)
            stored |= dict(zip((name, f"{path}.scales", f"{path}.biases"), parts, strict=True))
    loaded = backbone(write(tmp_path, config, stored))
    assert "fc" not in quantised(loaded)
    part = loaded.layers[1].self_attn.q_proj
    assert (part.bits, part.group_size) == (bits, 32)
    packed = [stored[f"layers.1.self_attn.q_proj.{name}"] for name in ("weight", "scales", "biases")]
    weight = mx.dequantize(*packed, group_size=32, bits=bits)
    x = mx.random.normal((3, 64), key=mx.random.key(2))
    assert mx.allclose(part(x), x @ weight.T, atol=1e-4)


def test_scales_that_fit_no_packing_are_named_with_file_and_tensor(
    config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    path = "layers.1.self_attn.q_proj"
    weight, scales, biases = mx.quantize(mx.array(tensors[f"{path}.weight"]), group_size=32, bits=4)
    stored = {**tensors, f"{path}.weight": weight, f"{path}.biases": biases}
    named = f"{tmp_path / 'model-00001-of-00001.safetensors'}: tensor {path}.weight: weight {list(weight.shape)} with "
    with pytest.raises(ModelError) as caught:
        backbone(write(tmp_path, config, {**stored, f"{path}.scales": mx.zeros((len(scales), 3))}))
    assert str(caught.value) == named + "scales of 3 groups is no packing of 64 inputs"


def test_tensors_keep_their_type(config: dict[str, Any], tensors: Tensors, tmp_path: Path) -> None:
    halves = {name: mx.array(tensor).astype(mx.bfloat16) for name, tensor in tensors.items()}
    loaded = backbone(write(tmp_path, config, halves))
    assert {parameter.dtype for _, parameter in tree_flatten(loaded.parameters())} == {mx.bfloat16}
    assert loaded.dtype == mx.bfloat16


def test_a_16_bit_drafter_serves_a_32_bit_target(
    target: Any, config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    exact = draft(write(tmp_path / "32", config, tensors), target)
    halves = {name: mx.array(tensor).astype(mx.bfloat16) for name, tensor in tensors.items()}
    rounded = draft(write(tmp_path / "16", config, halves), target)
    assert rounded.tokens[1] == exact.tokens[1]
    assert rounded.confidences[1] == pytest.approx(exact.confidences[1], rel=0.2)


def test_missing_and_unexpected_tensors_are_both_named(
    target: Any, config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    tensors["layers.0.self_attn.rotary.inv_freq"] = tensors.pop("layers.1.mlp.up_proj.weight")
    message = error(write(tmp_path, config, tensors), target)
    assert str(tmp_path) in message
    assert "no layers.1.mlp.up_proj.weight; unexpected layers.0.self_attn.rotary.inv_freq" in message


def test_a_dflash_checkpoint_lacks_what_a_dflash2_config_describes(
    target: Any, config: dict[str, Any], tmp_path: Path
) -> None:
    message = error(write(tmp_path, config, random_tensors(first_config([SLIDING, FULL], 3))), target)
    assert "candidate_selector.hidden_projection.weight" in message
    assert "and 3 more" in message


def test_a_shape_that_does_not_fit_names_file_tensor_and_both_shapes(
    target: Any, config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    tensors["layers.0.attention_conv.base_kernel"] = np.zeros((2, 3, 64), dtype=np.float32)
    message = error(write(tmp_path, config, tensors), target)
    file = tmp_path / "model-00001-of-00001.safetensors"
    assert message == f"{file}: tensor layers.0.attention_conv.base_kernel has shape [2, 3, 64]; expected [2, 2, 64]"


def test_files_that_are_missing_or_broken_are_named(
    target: Any, config: dict[str, Any], tensors: Tensors, tmp_path: Path
) -> None:
    assert "config.json" in error(tmp_path, target)
    write(tmp_path, config, tensors)
    file = tmp_path / "model-00001-of-00001.safetensors"
    (tmp_path / "again.safetensors").write_bytes(file.read_bytes())
    assert "is in" in error(tmp_path, target)
    (tmp_path / "again.safetensors").write_text("nothing")
    assert "again.safetensors: not a readable safetensors file" in error(tmp_path, target)
    (tmp_path / "again.safetensors").unlink()
    file.unlink()
    assert "no tensors there" in error(tmp_path, target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 128}, "hidden_size is 128, but the target has 64"),
        ({"vocab_size": 90}, "vocab_size is 90, but the target has 97"),
        ({"num_target_layers": 36}, "num_target_layers is 36, but the target has 3"),
        ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0]}}, "mask_token_id is 97"),
        ({"dflash_config": {"mask_token_id": 9, "target_layer_ids": [3]}}, "target_layer_ids is [3]"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    target: Any, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = first_config([FULL], 3) | changes
    assert message in error(write(tmp_path, config, random_tensors(first_config([FULL], 3))), target)


@pytest.mark.parametrize(
    ("family", "reason"), [("gpt2", "no inner module"), ("plamo", "no inner module"), ("gemma3n", "several streams")]
)
def test_a_target_whose_blocks_cannot_be_tapped_is_refused(
    config: dict[str, Any], tensors: Tensors, tmp_path: Path, family: str, reason: str
) -> None:
    message = error(write(tmp_path, config, tensors), tiny_model(family))
    assert message.startswith(f"{tmp_path}: no block drafter can serve this target")
    assert reason in message
