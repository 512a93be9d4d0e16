"""Tiny random checkpoints of Gemma-4 assistants, laid out as the published ones are."""

import json
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from drafter_rig import DrafterCase

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.gemma_assistant import AssistantSettings, load_gemma_assistant

HIDDEN, INTERMEDIATE, HEADS, TARGET_HIDDEN = 32, 64, 4, 64
HEAD_DIM = {"sliding_attention": 16, "full_attention": 32}
WINDOW = 8
CENTROIDS, ACTIVE = 12, 4

Tensors = dict[str, np.ndarray]

# Tiny random networks are unsure of everything.
SETTINGS = AssistantSettings(Expansion(depth=4, beam=3, children=3, min_value=1e-4))


def config_of(tokens: int, *, ordered: bool = False, **changes: Any) -> dict[str, Any]:
    """A config.json. `changes` are fields of the text model; None takes a field away."""
    text = {
        "model_type": "gemma4_text",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 4,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM["sliding_attention"],
        "global_head_dim": HEAD_DIM["full_attention"],
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "vocab_size": tokens,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        },
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": TARGET_HIDDEN,
        "use_ordered_embeddings": ordered,
        "num_centroids": CENTROIDS,
        "centroid_intermediate_top_k": ACTIVE,
        "tie_word_embeddings": True,
        "text_config": {name: value for name, value in (text | changes).items() if value is not None},
    }


def tensors_of(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random tensors of every name that such a checkpoint has."""
    rng = np.random.default_rng(seed)
    text, target = config["text_config"], config["backbone_hidden_size"]

    def matrix(outputs: int, inputs: int, gain: float = 1.5) -> np.ndarray:
        return (rng.normal(size=(outputs, inputs)) * gain / np.sqrt(inputs)).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return (1 + 0.2 * rng.normal(size=size)).astype(np.float32)

    tensors = {
        "pre_projection.weight": matrix(HIDDEN, 2 * target),
        "post_projection.weight": matrix(target, HIDDEN),
        "model.embed_tokens.weight": matrix(text["vocab_size"], HIDDEN, gain=2.0),
        "model.norm.weight": norm(HIDDEN),
    }
    for number, kind in enumerate(text["layer_types"]):
        layer, width = f"model.layers.{number}", HEAD_DIM[kind]
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            tensors[f"{layer}.{name}_layernorm.weight"] = norm(HIDDEN)
        tensors[f"{layer}.layer_scalar"] = np.array([0.8 + 0.1 * number], dtype=np.float32)
        tensors[f"{layer}.self_attn.q_proj.weight"] = matrix(HEADS * width, HIDDEN)
        tensors[f"{layer}.self_attn.q_norm.weight"] = norm(width)
        tensors[f"{layer}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * width)
        for name in ("gate", "up"):
            tensors[f"{layer}.mlp.{name}_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{layer}.mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
    if config["use_ordered_embeddings"]:
        tensors["masked_embedding.centroids.weight"] = matrix(config["num_centroids"], HIDDEN)
        tensors["masked_embedding.token_ordering"] = rng.permutation(text["vocab_size"]).astype(np.int64)
    return tensors


def packed(tensors: Tensors, names: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    """Those whose name ends with one of `names` in 8 bit, groups of 32; and all as dense ones of the same values."""
    stored, dense = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.removesuffix(".weight").endswith(names)]:
        parts = mx.quantize(mx.array(tensors[name]), group_size=32, bits=8)
        base = name.removesuffix("weight")
        for part, values in zip(("weight", "scales", "biases"), parts, strict=True):
            stored[base + part] = np.array(values)
        dense[name] = np.array(mx.dequantize(*parts, group_size=32, bits=8))
    return stored, dense


def write(directory: Path, config: dict[str, Any], tensors: Tensors, files: int = 1) -> Path:
    """A checkpoint, its tensors in `files` files."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    for number in range(files):
        part = {name: mx.array(tensors[name]) for name in names[number::files]}
        mx.save_safetensors(str(directory / f"model-{number + 1:05}-of-{files:05}.safetensors"), part)
    return directory


def assistant_case(family: str) -> DrafterCase:
    """A random assistant over a tiny target of a Gemma-4 family. One object serves all: its state is in its layers."""
    target, config = tiny_model(family), config_of(vocabulary(family))
    with tempfile.TemporaryDirectory() as directory:
        drafter = load_gemma_assistant(write(Path(directory), config, tensors_of(config)), target, SETTINGS)
    return DrafterCase(target, lambda: drafter, vocabulary(family))
