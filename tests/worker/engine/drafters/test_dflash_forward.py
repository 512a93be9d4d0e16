"""The drafts of DFlash and DFlash 2 against a forward in float64 that computes everything anew."""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from dflash_checkpoints import FULL, SLIDING, first_config, random_tensors, second_config, write
from dflash_comparison import ALL, check_independent, check_lattice, drafted, hidden_states, reference, sampled

from bench.families import tiny_model
from worker.engine.drafters.dflash import DFlashSettings
from worker.engine.sampling import Sampling

TOKENS = [int(token) for token in np.random.default_rng(1).integers(3, 97, 23)]
MIXED = [SLIDING, FULL, SLIDING]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0}


def with_own(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """`config` with further fields in its `dflash_config`."""
    return {**config, "dflash_config": {**config["dflash_config"], **fields}}


FIRST: dict[str, dict[str, Any]] = {
    "sliding layers are causal and full ones are not": {},
    "causal everywhere": {"is_causal": True},
    "bidirectional everywhere": {"is_causal": False},
    "windows narrower than the block": {"is_causal": False, "sliding_window": 3},
    "narrow causal windows": {"sliding_window": 2},
    "windows wider than the text": {"sliding_window": 64},
    "yarn": {"rope_scaling": YARN},
    "yarn with scales": {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.5}},
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "rope_parameters": {"rope_theta": None, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
}


@pytest.mark.parametrize("name", FIRST)
def test_dflash_slots_have_the_odds_of_the_reference(name: str, tmp_path: Path) -> None:
    target = tiny_model("llama")
    config = first_config(MIXED, target_layers=3, **FIRST[name])
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS)
    hidden = hidden_states(target, config, TOKENS[:-1])
    _, logits = reference(config, tensors, target).logits(hidden, TOKENS[-1], 5)
    check_independent(tree, logits)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])
@pytest.mark.parametrize("causal", [None, False])
def test_dflash2_candidates_have_the_odds_of_the_reference(family: str, causal: bool | None, tmp_path: Path) -> None:
    target = tiny_model(family)
    config = second_config([SLIDING, FULL], target_layers=len(target.layers), is_causal=causal)
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS)
    hidden = hidden_states(target, config, TOKENS[:-1])
    truth = reference(config, tensors, target)
    states, logits = truth.logits(hidden, TOKENS[-1], 5)
    check_lattice(tree, truth.lattice(states, logits, TOKENS[-1]))


@pytest.mark.parametrize("taps", [1, 3])
def test_a_convolution_reads_as_many_slots_as_its_checkpoint_says(taps: int, tmp_path: Path) -> None:
    target = tiny_model("llama")
    config = with_own(second_config([FULL], target_layers=3), conv_kernel_size=taps, conv_group_size=8)
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS)
    truth = reference(config, tensors, target)
    states, logits = truth.logits(hidden_states(target, config, TOKENS[:-1]), TOKENS[-1], 5)
    check_lattice(tree, truth.lattice(states, logits, TOKENS[-1]))


@pytest.mark.parametrize("slots", [2, 4, 9])
@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_width_and_mask_of_a_block_can_be_set(slots: int, mask: Any, tmp_path: Path) -> None:
    target = tiny_model("qwen3")
    config = first_config(MIXED, target_layers=3)
    tensors = random_tensors(config)
    # One guess a slot: the draft then reaches the last.
    settings = DFlashSettings(children=1, min_value=1e-20, block_size=slots, mask=mask)
    tree = drafted(target, write(tmp_path, config, tensors), settings, TOKENS)
    truth = reference(config, tensors, target, causal=mask == "causal")
    _, logits = truth.logits(hidden_states(target, config, TOKENS[:-1]), TOKENS[-1], slots)
    check_independent(tree, logits)


def test_scales_and_caps_of_the_config_are_applied(tmp_path: Path) -> None:
    target = tiny_model("llama")
    own = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 1.5}
    config = with_own(first_config([FULL], target_layers=3), **own)
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS)
    hidden = hidden_states(target, config, TOKENS[:-1])
    _, logits = reference(config, tensors, target).logits(hidden, TOKENS[-1], 5)
    assert np.abs(logits).max() > 1.0, "large enough for the cap to matter"
    check_independent(tree, logits)


def test_a_gemma_target_scales_the_block_and_caps_its_logits_once(tmp_path: Path) -> None:
    target = tiny_model("gemma4_text", final_logit_softcapping=0.5)
    layers = len(target.layers)
    config = with_own(first_config(MIXED, target_layers=layers), final_logit_softcapping=0.5)
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS)
    truth = reference(config, tensors, target, embedding_scale=math.sqrt(64))
    _, logits = truth.logits(hidden_states(target, config, TOKENS[:-1]), TOKENS[-1], 5)
    assert np.abs(logits).max() > 0.4, "large enough for the cap to matter"
    check_independent(tree, logits)


def test_a_text_of_one_token_has_a_block_without_context(tmp_path: Path) -> None:
    target = tiny_model("llama")
    config = first_config(MIXED, target_layers=3)
    tensors = random_tensors(config)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, [9])
    _, logits = reference(config, tensors, target).logits(np.zeros((0, 192)), 9, 5)
    check_independent(tree, logits)


@pytest.mark.parametrize("second", [False, True])
def test_a_sampled_draw_is_guessed_with_the_noise_of_its_position(second: bool, tmp_path: Path) -> None:
    target = tiny_model("llama")
    config = (second_config if second else first_config)(MIXED, target_layers=3)
    tensors = random_tensors(config)
    sampling = Sampling(temperature=0.7, seed=9)
    tree = drafted(target, write(tmp_path, config, tensors), ALL, TOKENS, sampling)
    truth, odds = reference(config, tensors, target), sampled(0.7, seed=9, position=len(TOKENS) - 1)
    states, logits = truth.logits(hidden_states(target, config, TOKENS[:-1]), TOKENS[-1], 5)
    if second:
        check_lattice(tree, truth.lattice(states, logits, TOKENS[-1]), odds)
    else:
        check_independent(tree, logits, odds)


def test_residual_streams_of_the_blocks_are_tapped_before_the_final_norm() -> None:
    target = tiny_model("llama")
    expected, h = [], target.model.embed_tokens(mx.array([TOKENS]))
    for layer in target.layers:
        h = layer(h, "causal", None)
        expected.append(np.array(h[0]))
    config = first_config([FULL], target_layers=3)
    assert config["dflash_config"]["target_layer_ids"] == [0, 1, 2]
    np.testing.assert_allclose(hidden_states(target, config, TOKENS), np.concatenate(expected, axis=-1), atol=1e-4)
