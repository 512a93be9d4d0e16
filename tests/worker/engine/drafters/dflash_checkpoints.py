"""Tiny random checkpoints of block drafters, laid out as the published ones are."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from drafter_rig import DrafterCase

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.dflash import DFlashDrafter, DFlashSettings, read_dflash_config
from worker.engine.drafters.dflash.checkpoint import load_backbone

HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
TAPS, KERNEL_TAPS, GROUP, RANK = 3, 2, 16, 8
SLIDING, FULL = "sliding_attention", "full_attention"

Tensors = dict[str, np.ndarray]


def first_config(layers: list[str], target_layers: int, vocabulary: int = 97, **changes: Any) -> dict[str, Any]:
    """A config.json of DFlash. `changes` are top-level fields; None takes a field away."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": len(layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "num_target_layers": target_layers,
        "layer_types": layers,
        "sliding_window": 6,
        "block_size": 5,
        "dflash_config": {"mask_token_id": vocabulary - 2, "target_layer_ids": [0, 1, target_layers - 1]},
    } | changes
    return {name: value for name, value in config.items() if value is not None}


def second_config(layers: list[str], target_layers: int, vocabulary: int = 97, **changes: Any) -> dict[str, Any]:
    """A config.json of DFlash 2; block size and what is new stand in `dflash_config`."""
    config = first_config(layers, target_layers, vocabulary, architectures=["DFlash2DraftModel"], block_size=None)
    config["dflash_config"] |= {
        "block_size": 5,
        "conv_kernel_size": KERNEL_TAPS,
        "conv_group_size": GROUP,
        "selector_rank": RANK,
        "selector_top_k": 6,
    }
    return config | changes


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Tensors by their published names, float32, large enough that every one of them shows in the drafts."""
    rng = np.random.default_rng(seed)

    def matrix(outputs: int, inputs: int, gain: float = 1.5) -> np.ndarray:
        return rng.normal(0, gain / inputs**0.5, (outputs, inputs)).astype(np.float32)

    def norm(width: int) -> np.ndarray:
        return rng.normal(1, 0.2, width).astype(np.float32)

    hidden, own = config["hidden_size"], config["dflash_config"]
    width = config["head_dim"]
    tensors = {
        "fc.weight": matrix(hidden, len(own["target_layer_ids"]) * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"layers.{number}."
        tensors |= {
            layer + "input_layernorm.weight": norm(hidden),
            layer + "post_attention_layernorm.weight": norm(hidden),
            layer + "self_attn.q_proj.weight": matrix(config["num_attention_heads"] * width, hidden),
            layer + "self_attn.k_proj.weight": matrix(config["num_key_value_heads"] * width, hidden),
            layer + "self_attn.v_proj.weight": matrix(config["num_key_value_heads"] * width, hidden),
            layer + "self_attn.o_proj.weight": matrix(hidden, config["num_attention_heads"] * width),
            # Large norms make attention choose, so that its mask and its positions matter.
            layer + "self_attn.q_norm.weight": norm(width) * 2,
            layer + "self_attn.k_norm.weight": norm(width) * 2,
            layer + "mlp.gate_proj.weight": matrix(config["intermediate_size"], hidden),
            layer + "mlp.up_proj.weight": matrix(config["intermediate_size"], hidden),
            layer + "mlp.down_proj.weight": matrix(hidden, config["intermediate_size"]),
        }
        if "conv_kernel_size" in own:
            taps, groups = own["conv_kernel_size"], hidden // own["conv_group_size"]
            for name in ("attention_conv.", "mlp_conv."):
                tensors[layer + name + "base_kernel"] = rng.normal(0.6, 0.3, (2, taps, hidden)).astype(np.float32)
                tensors[layer + name + "kernel_projection.weight"] = matrix(2 * taps * groups, hidden, 0.5)
    if "selector_rank" in own:
        rank = own["selector_rank"]
        tensors["candidate_selector.hidden_projection.weight"] = matrix(rank, hidden)
        for name in ("predecessor_codebook", "successor_codebook"):
            tensors["candidate_selector." + name] = rng.normal(0, 1, (config["vocab_size"], rank)).astype(np.float32)
    return tensors


def write(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], files: int = 1) -> Path:
    """config.json and `files` safetensors files in `directory`, which is returned."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    for number in range(files):
        part = {name: mx.array(tensors[name]) for name in names[number::files]}
        mx.save_safetensors(str(directory / f"model-{number + 1:05}-of-{files:05}.safetensors"), part)
    return directory


def dflash_case(
    make_config: Callable[..., dict[str, Any]], family: str, layers: list[str], settings: DFlashSettings, **changes: Any
) -> DrafterCase:
    """A random drafter over a random target. `changes` are fields of its config."""
    target = tiny_model(family)
    config = make_config(layers, len(target.layers), vocabulary(family), **changes)
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), config, random_tensors(config))
        backbone = load_backbone(Path(directory), read_dflash_config(Path(directory)))
    return DrafterCase(target, lambda: DFlashDrafter(backbone, target, settings), vocabulary(family))
