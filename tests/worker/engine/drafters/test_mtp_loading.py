"""An MTP head is found and read in every published layout, and computes what its definition says."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from mtp_checkpoints import (
    FAMILIES,
    LAYOUTS,
    PACKED_LAYOUTS,
    converted,
    one_by_one,
    packed,
    pointed_sidecar,
    raw_model,
    raw_tensors,
    stand_alone,
    target,
    unpacked,
    write,
    write_config,
)
from mtp_reference import numbers, reference

from api.errors import ModelError
from bench.families import configuration, tiny_model
from worker.engine.drafters.mtp import find_mtp, load_mtp

PAIRS = 9


def loaded(directory: Path, family: str) -> Any:
    source = find_mtp(directory)
    assert source is not None
    return load_mtp(source, target(family))


def inputs(width: int = 64) -> tuple[mx.array, mx.array]:
    mx.random.seed(3)
    return mx.random.normal((PAIRS, width)), mx.random.normal((PAIRS, width))


def assert_follows_definition(head: Any, raw: Mapping[str, mx.array], family: str) -> None:
    embedded, hidden = inputs()
    config = configuration(family)["text_config"]
    causal = np.tri(PAIRS, dtype=np.bool_)
    expected = reference(raw, config, numbers(embedded), numbers(hidden), np.arange(PAIRS), causal)
    got = head(embedded, hidden, "causal", KVCache())
    np.testing.assert_allclose(numbers(got), expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_head_that_the_definition_says(tmp_path: Path, layout: str, family: str) -> None:
    LAYOUTS[layout](tmp_path, family)
    raw = raw_tensors(family)
    assert_follows_definition(loaded(tmp_path, family), unpacked(raw) if layout in PACKED_LAYOUTS else raw, family)


@pytest.mark.parametrize("mode", [{"mode": "mxfp4"}, {"mode": "mxfp8"}, {"group_size": 64, "bits": 4}], ids=str)
def test_every_packing_is_recognized_by_its_shapes(tmp_path: Path, mode: dict[str, Any]) -> None:
    raw = raw_tensors("qwen3_5")
    write(tmp_path, "model.safetensors", packed(converted(raw), **mode))
    rounded = {
        name: mx.dequantize(*mx.quantize(tensor, **mode), **mode) if tensor.ndim > 1 and name != "fc.weight" else tensor
        for name, tensor in raw.items()
    }
    assert_follows_definition(loaded(tmp_path, "qwen3_5"), rounded, "qwen3_5")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_stored_unpacked_is_quantized_as_its_manifest_asks(tmp_path: Path, family: str) -> None:
    raw_model(tmp_path, family)
    wanted = {"bits": 8, "group_size": 32, "mode": "affine", "policy": "all", "prequantized": False}
    write_config(tmp_path, configuration(family) | {"mtplx_mtp_quantization": wanted})
    head = loaded(tmp_path, family)
    assert head.layers[0].self_attn.q_proj.bits == 8
    assert "scales" not in head.fc
    if family == "qwen3_5":
        assert_follows_definition(head, unpacked(raw_tensors(family)), family)


@pytest.mark.parametrize("experts", [2, 8])
def test_a_head_may_have_more_or_fewer_experts_than_its_target(tmp_path: Path, experts: int) -> None:
    raw = raw_tensors("qwen3_5_moe", experts=experts)
    write(tmp_path, "mtp.safetensors", raw, "mtp.")
    assert_follows_definition(loaded(tmp_path, "qwen3_5_moe"), raw, "qwen3_5_moe")


def test_the_type_of_the_head_is_that_of_the_targets_states(tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    source = find_mtp(tmp_path)
    assert source is not None
    head = load_mtp(source, tiny_model("qwen3_5", dtype=mx.float16))
    assert {head.fc.weight.dtype, head.norm.weight.dtype} == {mx.float16}


def test_a_directory_without_the_tensors_has_no_head_whatever_its_configuration_says(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors", {"language_model.model.norm.weight": mx.ones((64,))})
    write_config(tmp_path, configuration("qwen3_5", mtp_num_hidden_layers=1))
    assert find_mtp(tmp_path) is None


def test_another_familys_prediction_head_is_not_taken_for_one(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors", {"enorm.weight": mx.ones((64,)), "hnorm.weight": mx.ones((64,))}, "mtp.0.")
    assert find_mtp(tmp_path) is None


def test_a_sidecar_is_preferred_to_the_models_own_head(tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    write(tmp_path, "optiq/mtp.safetensors", converted(raw_tensors("qwen3_5")), "mtp.")
    source = find_mtp(tmp_path)
    assert source is not None
    assert source.files == [tmp_path / "optiq" / "mtp.safetensors"]


def contract(**entries: str) -> dict[str, Any]:
    return {"mtp_contract": entries}


@pytest.mark.parametrize(("stated", "hidden"), [("post_norm", "normed"), ("pre_norm", "residual")])
def test_the_manifest_says_which_hidden_state_the_head_reads(tmp_path: Path, stated: str, hidden: str) -> None:
    pointed_sidecar(tmp_path, "qwen3_5")
    source = find_mtp(tmp_path)
    assert source is not None
    assert source.hidden == "normed"
    (tmp_path / "mtplx_runtime.json").write_text(json.dumps(contract(base_hidden_variant=stated)))
    source = find_mtp(tmp_path)
    assert source is not None
    assert source.hidden == hidden


def refused(directory: Path, family: str = "qwen3_5") -> str:
    with pytest.raises(ModelError) as error:
        loaded(directory, family)
    return str(error.value)


def without(tensors: Mapping[str, mx.array], *names: str) -> dict[str, mx.array]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize("missing", ["fc.weight", "norm.weight", "layers.0.self_attn.v_proj.weight"])
def test_an_incomplete_head_is_refused_with_what_it_lacks(tmp_path: Path, missing: str) -> None:
    write(tmp_path, "mtp.safetensors", without(raw_tensors("qwen3_5"), missing), "mtp.")
    message = refused(tmp_path)
    assert f"lacks tensors: {missing}" in message
    assert str(tmp_path / "mtp.safetensors") in message


@pytest.mark.parametrize("name", ["layers.0.mlp.experts.1.up_proj.weight", "layers.0.mlp.switch_mlp.up_proj.weight"])
def test_a_missing_expert_is_refused_by_name(tmp_path: Path, name: str) -> None:
    form = converted if "switch" in name else one_by_one
    write(tmp_path, "mtp.safetensors", without(form(raw_tensors("qwen3_5_moe")), name), "mtp.")
    assert f"lacks tensors: {name}" in refused(tmp_path, "qwen3_5_moe")


def test_tensors_that_the_head_has_no_place_for_are_refused(tmp_path: Path) -> None:
    raw = raw_tensors("qwen3_5")
    more = {name.replace("layers.0", "layers.1"): tensor for name, tensor in raw.items() if "q_norm" in name}
    write(tmp_path, "mtp.safetensors", {**raw, **more}, "mtp.")
    assert "has unknown tensors: layers.1.self_attn.q_norm.weight" in refused(tmp_path)


def test_the_head_of_another_model_is_refused_with_both_shapes(tmp_path: Path) -> None:
    raw = raw_tensors("qwen3_5") | {"layers.0.mlp.down_proj.weight": mx.zeros((64, 96))}
    write(tmp_path, "mtp.safetensors", raw, "mtp.")
    message = refused(tmp_path)
    assert (
        "mtp.safetensors: tensor mtp.layers.0.mlp.down_proj.weight is [64, 96], and the target needs [64, 128]"
        in message
    )


def test_the_tensors_decide_whether_a_head_has_experts(tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    assert_follows_definition(loaded(tmp_path, "qwen3_5_moe"), raw_tensors("qwen3_5"), "qwen3_5_moe")


def test_scales_that_fit_no_packing_are_refused(tmp_path: Path) -> None:
    tensors = packed(converted(raw_tensors("qwen3_5")))
    scales = "layers.0.mlp.up_proj.scales"
    write(tmp_path, "model.safetensors", tensors | {scales: mx.zeros((128, 3))})
    message = refused(tmp_path)
    named = f"{tmp_path / 'model.safetensors'}: tensor layers.0.mlp.up_proj.weight: "
    assert message == named + "weight [128, 16] with scales of 3 groups is no packing of 64 inputs"


def test_fewer_experts_than_a_token_takes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "mtp.safetensors", raw_tensors("qwen3_5_moe", experts=1), "mtp.")
    assert "has 1 experts, and the target's tokens take 2" in refused(tmp_path, "qwen3_5_moe")


# One as Qwen3.5 is built, one without the fields of its configuration, one without an inner module to tap.
@pytest.mark.parametrize("family", ["llama", "plamo3", "gpt2"])
def test_a_target_of_another_family_is_refused(tmp_path: Path, family: str) -> None:
    raw_model(tmp_path, "qwen3_5")
    source = find_mtp(tmp_path)
    assert source is not None
    with pytest.raises(ModelError, match=rf"needs a target of the Qwen3\.5 family, and this one is a {family}"):
        load_mtp(source, tiny_model(family))


def pointer_to_nothing(directory: Path) -> None:
    write_config(directory, {"mlx_lm_extra_tensors": {"mtp_file": "optiq/mtp.safetensors"}})


def broken_file(directory: Path) -> None:
    (directory / "mtp.safetensors").write_bytes(b"no tensors")


def broken_config(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def other_order(directory: Path) -> None:
    pointed_sidecar(directory, "qwen3_5")
    (directory / "mtplx_runtime.json").write_text(json.dumps(contract(concat_order="hidden_embedding")))


def other_hidden(directory: Path) -> None:
    stand_alone(directory, "qwen3_5")
    write_config(directory, {"mtplx_mtp_contract": {"base_hidden_variant": "mid_norm"}})


@pytest.mark.parametrize(
    ("make", "file", "message"),
    [
        (pointer_to_nothing, "config.json", "names optiq/mtp.safetensors, and there is no such file"),
        (broken_file, "mtp.safetensors", "not a safetensors file that can be read"),
        (broken_config, "config.json", "not JSON"),
        (other_order, "mtplx_runtime.json", "concat_order is 'hidden_embedding'; supported: embedding_hidden"),
        (other_hidden, "config.json", "base_hidden_variant is 'mid_norm'; supported: post_norm, pre_norm"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], None], file: str, message: str) -> None:
    make(tmp_path)
    with pytest.raises(ModelError) as error:
        find_mtp(tmp_path)
    assert str(error.value).startswith(str(tmp_path / file))
    assert message in str(error.value)
