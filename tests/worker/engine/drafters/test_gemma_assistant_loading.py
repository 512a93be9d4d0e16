"""Checkpoints of Gemma-4 assistants: what loads, and errors that name file and field or tensor, found and expected."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gemma_assistant_checkpoints import Tensors, config_of, packed, tensors_of, write
from mlx.utils import tree_flatten

from api.errors import ExitCode, ModelError
from bench.families import tiny_model
from worker.engine.drafters.gemma_assistant import load_gemma_assistant

TOKENS = 97


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model("gemma4_text")


def refused(directory: Path, target: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_gemma_assistant(directory, target)
    assert caught.value.exit_code == ExitCode.MODEL_UNUSABLE
    message = str(caught.value)
    assert "\n" not in message
    return message


def of_config(directory: Path, target: Any, **changes: Any) -> str:
    """The message about a config.json with these fields of the text model."""
    write(directory, config_of(TOKENS, **changes), tensors_of(config_of(TOKENS)))
    return refused(directory, target).removeprefix(f"{directory / 'config.json'}: ")


def of_tensors(directory: Path, target: Any, changes: dict[str, Any], config: dict[str, Any] | None = None) -> str:
    """The message about a checkpoint with these tensors changed; None takes one away."""
    config = config or config_of(TOKENS)
    tensors: Tensors = {name: tensor for name, tensor in (tensors_of(config) | changes).items() if tensor is not None}
    return refused(write(directory, config, tensors), target)


def test_a_checkpoint_loads_from_one_file_or_several(target: Any, tmp_path: Path) -> None:
    config = config_of(TOKENS)
    tensors = tensors_of(config)
    for files in (1, 3):
        drafter = load_gemma_assistant(write(tmp_path / str(files), config, tensors, files), target)
        loaded = dict(tree_flatten(drafter._network.parameters()))
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(np.array(loaded[name]), tensor)


def test_what_config_leaves_out_has_the_published_value(target: Any, tmp_path: Path) -> None:
    full, short = config_of(TOKENS), config_of(TOKENS)
    for name in ("rope_parameters", "num_kv_shared_layers", "hidden_activation", "use_double_wide_mlp"):
        del short["text_config"][name]
    del short["tie_word_embeddings"]
    tensors = tensors_of(full)
    networks = [
        load_gemma_assistant(write(tmp_path / str(number), config, tensors), target)._network
        for number, config in enumerate((full, short))
    ]
    rng = np.random.default_rng(0)
    rows = [mx.array(rng.normal(size=(2, 64)).astype(np.float32)) for _ in range(2)]
    borrowed = {
        kind: tuple(mx.array(rng.normal(size=(1, 1, 5, width)).astype(np.float32)) for _ in range(2))
        for kind, width in (("sliding_attention", 16), ("full_attention", 32))
    }
    one, other = (network(*rows, borrowed, mx.array([5, 9]))[0] for network in networks)
    np.testing.assert_array_equal(np.array(one), np.array(other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing; expected a whole number of at least 1"),
        ({"enable_moe_block": True}, "enable_moe_block is True; expected false, the only form that is supported"),
        ({"attention_bias": True}, "attention_bias is True; expected false, the only form that is supported"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input is 256; expected 0, the only form that is"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2; expected 4: no layer of an assistant has keys and"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; expected one of gelu_pytorch_tanh"),
        ({"layer_types": None}, "layer_types is missing; expected 4 of sliding_attention and full_attention"),
        (
            {"layer_types": ["full_attention"] * 3},
            "layer_types is ['full_attention', 'full_attention', 'full_attention'",
        ),
        ({"sliding_window": 1}, "sliding_window is 1; expected a whole number of at least 2"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_parameters is {'full_attention': {'rope_",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}},
            "rope_parameters is {'sliding_attention'",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}},
            "rope_parameters is {'sliding_attention': {'rope_theta': 10000.0, 'partial_rotary_factor': 0.5}}; expected "
            "sliding_attention with no fields but rope_theta, positive numbers",
        ),
    ],
)
def test_a_field_that_is_not_supported_is_named(
    changes: dict[str, Any], message: str, target: Any, tmp_path: Path
) -> None:
    assert of_config(tmp_path, target, **changes).startswith(message)


def test_a_head_of_its_own_is_not_supported(target: Any, tmp_path: Path) -> None:
    config = config_of(TOKENS) | {"tie_word_embeddings": False}
    write(tmp_path, config, tensors_of(config))
    assert "tie_word_embeddings is False; expected true" in refused(tmp_path, target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_centroids": 10}, "num_centroids is 10; expected a divisor of vocab_size, which is 97"),
        (
            {"num_centroids": 97, "centroid_intermediate_top_k": 98},
            "centroid_intermediate_top_k is 98; expected at most",
        ),
    ],
)
def test_clusters_have_to_divide_the_vocabulary(
    changes: dict[str, int], message: str, target: Any, tmp_path: Path
) -> None:
    config = config_of(TOKENS) | {"use_ordered_embeddings": True} | changes
    write(tmp_path, config, tensors_of(config_of(TOKENS)))
    assert message in refused(tmp_path, target)


def test_missing_and_unexpected_tensors_are_listed(target: Any, tmp_path: Path) -> None:
    changes = {
        "model.layers.1.self_attn.q_norm.weight": None,
        "pre_projection.weight": None,
        "model.layers.0.self_attn.k_proj.weight": np.zeros((16, 32), dtype=np.float32),
    }
    assert of_tensors(tmp_path, target, changes) == (
        f"{tmp_path}: the tensors are not those that config.json describes: "
        "no model.layers.1.self_attn.q_norm.weight, pre_projection.weight; "
        "unexpected model.layers.0.self_attn.k_proj.weight"
    )


def test_a_tensor_of_another_shape_is_named_with_its_file(target: Any, tmp_path: Path) -> None:
    changes = {"post_projection.weight": np.zeros((64, 16), dtype=np.float32)}
    file = tmp_path / "model-00001-of-00001.safetensors"
    assert of_tensors(tmp_path, target, changes) == (
        f"{file}: tensor post_projection.weight has shape [64, 16]; expected [64, 32]"
    )


def test_a_packing_that_fits_no_shape_is_named(target: Any, tmp_path: Path) -> None:
    stored, _ = packed(tensors_of(config_of(TOKENS)), ("post_projection",))
    weight, scales = stored["post_projection.weight"], stored["post_projection.scales"]
    write(tmp_path, config_of(TOKENS), stored | {"post_projection.scales": scales.repeat(3, axis=1)})
    named = f"{tmp_path / 'model-00001-of-00001.safetensors'}: tensor post_projection.weight: "
    assert refused(tmp_path, target) == (named + "weight [64, 8] with scales of 3 groups is no packing of 32 inputs")
    write(tmp_path, config_of(TOKENS), stored | {"post_projection.weight": weight[:, :7]})
    assert refused(tmp_path, target).startswith(named + "weight [64, 7] with scales of 1 groups ")


def test_a_directory_without_tensors_and_a_broken_file(target: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(TOKENS)))
    assert "no tensors there" in refused(tmp_path, target)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    assert refused(tmp_path, target).startswith(f"{tmp_path / 'model.safetensors'}: not a readable safetensors file")


def test_an_assistant_of_another_target_is_refused(target: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    ending = ": it is made for another target"
    config = config_of(TOKENS) | {"backbone_hidden_size": 48}
    write(tmp_path, config, tensors_of(config))
    assert refused(tmp_path, target) == f"{path}: backbone_hidden_size is 48, but the target has 64{ending}"
    write(tmp_path, config_of(89), tensors_of(config_of(89)))
    assert refused(tmp_path, target) == f"{path}: vocab_size is 89, but the target has 97{ending}"
    write(tmp_path, config_of(TOKENS, head_dim=8), {})
    assert refused(tmp_path, target) == (
        f"{path}: 4 heads of 8 in sliding_attention layers do not fit the target's 1 of 16{ending}"
    )


def test_a_target_without_layers_of_a_type_is_refused(tmp_path: Path) -> None:
    full_only = tiny_model("gemma4_text", layer_types=["full_attention"] * 7)
    write(tmp_path, config_of(TOKENS), {})
    assert refused(tmp_path, full_only) == (
        f"{tmp_path / 'config.json'}: layer_types has sliding_attention, but the target has no such layer: "
        "it is made for another target"
    )


def test_a_target_of_another_family_is_refused(tmp_path: Path) -> None:
    write(tmp_path, config_of(TOKENS), tensors_of(config_of(TOKENS)))
    assert refused(tmp_path, tiny_model("llama")) == (
        f"{tmp_path}: no Gemma-4 assistant can serve this target: its text model is not a Gemma-4 one"
    )
    assert "no Gemma-4 assistant can serve this target" in refused(tmp_path, tiny_model("mamba2"))
