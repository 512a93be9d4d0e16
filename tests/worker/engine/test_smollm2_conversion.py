"""The GGUF of SmolLM2-135M-Instruct as an MLX directory: text round trips, template, and weights that agree."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from worker.engine.loading import load_target, resolve
from worker.engine.models import ModelSpec, demo_gguf, local_models

pytestmark = pytest.mark.model

ODD_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two leading spaces",
    "trailing space ",
    "tabs\tand\nnewlines\r\nand CRLF",
    "你好，世界！東京",
    "👨‍👩‍👧‍👦 🏳️‍🌈 🇨🇭",
    "e\u0301 combining n\u0303",
    "non\u00a0breaking",
    "مرحبا ٣٤٥",
    "1234567890 3.14159 1,000",
    "def f(x):\n    return x ** 2  # code",
    "<|im_start|>system\nspecial<|im_end|>",
    "don't can't I'll we've",
    "a\u0000b \u200b zero width",
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(16))
def test_texts_survive_the_tokenizer(smollm2_tokenizer: TokenizerWrapper, text: str) -> None:
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


def test_digits_and_special_tokens_are_split_as_the_model_learned_them(smollm2_tokenizer: TokenizerWrapper) -> None:
    assert len(smollm2_tokenizer.encode("12345")) == 5
    assert smollm2_tokenizer.encode("<|im_start|>") == [1]
    assert smollm2_tokenizer.encode("<|im_end|>") == [2]
    assert smollm2_tokenizer.eos_token_ids == {2}
    assert smollm2_tokenizer.bos_token_id == 1


def test_the_template_s_ids_are_those_of_its_text(smollm2_tokenizer: TokenizerWrapper) -> None:
    messages = [{"role": "user", "content": "What is 12 + 3?"}, {"role": "assistant", "content": "15"}]
    text = smollm2_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = smollm2_tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert ids == smollm2_tokenizer.encode(text)
    assert text.startswith("<|im_start|>system\n")
    turns = [("user", "What is 12 + 3?"), ("assistant", "15")]
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    assert text.endswith(f"{said}<|im_start|>assistant\n")
    assert [token for token in ids if token < 17] == [1, 2, 1, 2, 1, 2, 1]


def test_the_directory_opens_with_mlx_lm(smollm2_directory: Path) -> None:
    model, _ = mlx_lm.load(str(smollm2_directory))
    assert len(model.layers) == 30
    config = json.loads((smollm2_directory / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"], config["num_key_value_heads"]) == (576, 49152, 3)
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.embed_tokens"]["bits"] == 8
    assert json.loads((smollm2_directory / "generation_config.json").read_text())["eos_token_id"] == 2


def logits_of(directory: Path, tokens: list[int]) -> np.ndarray:
    model: Any
    model, _ = mlx_lm.load(str(directory))
    return np.array(model(mx.array([tokens]), cache=make_prompt_cache(model))[0])


def test_packed_and_dense_weights_give_the_same_logits(
    smollm2_directory: Path, smollm2_float32_directory: Path, smollm2_tokenizer: TokenizerWrapper
) -> None:
    tokens = smollm2_tokenizer.encode("The capital of France is")
    packed, dense = logits_of(smollm2_directory, tokens), logits_of(smollm2_float32_directory, tokens)
    assert np.abs(packed - dense).max() < 1e-4 * np.abs(dense).max()
    # The weights are in their places: a permuted head or a wrong name would not know this.
    assert smollm2_tokenizer.decode([int(dense[-1].argmax())]) == " Paris"


def test_a_conversion_is_done_once_and_listed(smollm2_directory: Path) -> None:
    before = (smollm2_directory / "model.safetensors").stat().st_mtime_ns
    assert resolve(ModelSpec("smollm2"), smollm2_directory.parent) == smollm2_directory
    assert (smollm2_directory / "model.safetensors").stat().st_mtime_ns == before
    assert local_models(smollm2_directory.parent) == [smollm2_directory]
    # Nothing half done is left beside it.
    assert [path for path in smollm2_directory.parent.iterdir() if path != smollm2_directory] == []


def test_a_target_knows_itself(smollm2_directory: Path) -> None:
    target = load_target(ModelSpec(str(smollm2_directory)), smollm2_directory.parent)
    assert target.context == 8192
    assert target.vocabulary == 49152
    assert target.dtype == mx.float32
    assert target.recipe == {}
    again = load_target(ModelSpec("smollm2"), smollm2_directory.parent)
    assert again.identity == target.identity


def test_a_packed_model_can_be_asked_for_as_dense(smollm2_directory: Path) -> None:
    target = load_target(ModelSpec(str(smollm2_directory), "bfloat16"), smollm2_directory.parent)
    assert target.dtype == mx.bfloat16
    assert target.model.model.layers[0].self_attn.q_proj.weight.shape == (576, 576)


def test_the_demo_model_is_the_file_in_its_package() -> None:
    assert demo_gguf().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert ModelSpec("smollm2").source == demo_gguf()
