"""A GGUF file of the llama architecture, converted once into an MLX model directory.

MLX reads the packed Q4_0, Q4_1 and Q8_0 tensors as they are (group size 32), so the converted model computes with the
very weights that were shipped; dense copies for 16 or 32 bit are dequantised from them.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from api.errors import ModelError, StorageError
from worker.engine.models import Dtype

# Counted up when a conversion comes out different, so that older ones on disk are not taken for it.
CONVERSION = 2
GROUP_SIZE = 32
CONTROL_TOKEN = 3

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

Weights = dict[str, mx.array]


def convert(gguf: Path, directory: Path, dtype: Dtype | None) -> None:
    """Write the MLX directory of `gguf`; dtype None keeps the packed weights.

    The directory appears complete or not at all. Raises ModelError for an architecture or tensor that is not known, and
    StorageError when there is no room.
    """
    try:
        loaded: Any = mx.load(str(gguf), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{gguf}: cannot be read as GGUF: {error}") from error
    weights, metadata = loaded
    facts = _Facts(gguf, metadata)
    _check_supported(gguf, facts)
    renamed = _renamed(gguf, weights, facts)
    bits = _bits(renamed)
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write(draft, renamed, bits, facts, dtype)
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(draft, directory)
    except (OSError, RuntimeError) as error:
        raise StorageError(f"{directory}: cannot write the converted model: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def packed_float_type() -> mx.Dtype:
    """Type of the scales of packed weights: MLX's CPU kernels are an order of magnitude faster in float32."""
    return mx.float32 if mx.default_device() == mx.cpu else mx.bfloat16


class _Facts(dict[str, Any]):
    """A file's metadata; a fact that is missing is an error that names it."""

    def __init__(self, gguf: Path, metadata: dict[str, Any]) -> None:
        super().__init__({name: _plain(value) for name, value in metadata.items()})
        self._gguf = gguf

    def __missing__(self, name: str) -> Any:
        raise ModelError(f"{self._gguf}: the GGUF metadata has no {name}; use an MLX directory")


def _plain(value: Any) -> Any:
    if not isinstance(value, mx.array):
        return value
    return value.item() if value.size == 1 else value.tolist()


def _check_supported(gguf: Path, facts: dict[str, Any]) -> None:
    architecture = facts.get("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"{gguf}: GGUF architecture {architecture!r} is not supported, only llama; use an MLX directory"
        )
    if facts.get("tokenizer.ggml.model") != "gpt2" or facts.get("tokenizer.ggml.pre") != "smollm":
        found = f"{facts.get('tokenizer.ggml.model')!r}/{facts.get('tokenizer.ggml.pre')!r}"
        raise ModelError(f"{gguf}: GGUF tokenizer {found} is not supported, only gpt2/smollm; use an MLX directory")


def _renamed(gguf: Path, weights: Weights, facts: dict[str, Any]) -> Weights:
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    renamed: Weights = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        block, _, part = module.rpartition(".")
        if block.startswith("blk.") and part in _LAYER_NAMES:
            if part in heads:
                tensor = _unpermuted(tensor, heads[part])
            renamed[f"model.layers.{block.removeprefix('blk.')}.{_LAYER_NAMES[part]}.{kind}"] = tensor
        elif module in _TOP_NAMES:
            renamed[f"{_TOP_NAMES[module]}.{kind}"] = tensor
        else:
            raise ModelError(f"{gguf}: tensor {name!r} has no place in a llama model")
    return renamed


def _unpermuted(tensor: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's interleaving of the rotary halves: rows of each head, so packed columns stay as they are."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _bits(weights: Weights) -> dict[str, int]:
    """Bits of each packed module: 32-bit words over groups of GROUP_SIZE values."""
    packed = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    return {
        module: weights[f"{module}.weight"].shape[1] * 32 // (weights[f"{module}.scales"].shape[1] * GROUP_SIZE)
        for module in packed
    }


def _write(directory: Path, weights: Weights, bits: dict[str, int], facts: dict[str, Any], dtype: Dtype | None) -> None:
    if dtype:
        weights = _dense(weights, bits)
    target: mx.Dtype = getattr(mx, dtype) if dtype else packed_float_type()
    weights = {name: w if w.dtype == mx.uint32 else w.astype(target) for name, w in weights.items()}
    config = _config(weights, facts)
    if not dtype:
        config["quantization"] = config["quantization_config"] = _quantization(bits)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    _tokenizer(facts).save(str(directory / "tokenizer.json"))
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", _tokenizer_config(facts)),
        ("generation_config.json", _generation_config(facts)),
    ):
        (directory / name).write_text(json.dumps(content, indent=2), "utf-8")


def _dense(weights: Weights, bits: dict[str, int]) -> Weights:
    dense = dict(weights)
    for module, width in bits.items():
        # In float32: the file's float16 scales would round every weight to float16.
        scales, biases = (dense.pop(f"{module}.{part}").astype(mx.float32) for part in ("scales", "biases"))
        weight = dense[f"{module}.weight"]
        dense[f"{module}.weight"] = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=width)
    return dense


def _quantization(bits: dict[str, int]) -> dict[str, Any]:
    common = Counter(bits.values()).most_common(1)[0][0]
    shape = {"group_size": GROUP_SIZE, "mode": "affine"}
    others = {module: {**shape, "bits": width} for module, width in bits.items() if width != common}
    return {**shape, "bits": common, **others}


def _config(weights: Weights, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": facts["llama.embedding_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "vocab_size": facts["llama.vocab_size"],
        "max_position_embeddings": facts["llama.context_length"],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def _tokenizer(facts: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    def token(role: str) -> str:
        return str(facts["tokenizer.ggml.tokens"][facts[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": False,
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
    }


def _generation_config(facts: dict[str, Any]) -> dict[str, Any]:
    return {f"{role}_token_id": facts[f"tokenizer.ggml.{name}_token_id"] for role, name in _GENERATION_TOKENS.items()}


_GENERATION_TOKENS = {"bos": "bos", "eos": "eos", "pad": "padding"}
