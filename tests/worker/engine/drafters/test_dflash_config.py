"""config.json of block drafters: all published variants, and errors that name the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from dflash_checkpoints import FULL, SLIDING, first_config, second_config

from api.errors import ModelError
from worker.engine.drafters.dflash import DFlashConfig, read_dflash_config


def read(tmp_path: Path, config: Any, target_layers: int | None = None) -> DFlashConfig:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_dflash_config(tmp_path, target_layers)


def error(tmp_path: Path, config: Any) -> str:
    with pytest.raises(ModelError) as raised:
        read(tmp_path, config)
    assert str(tmp_path / "config.json") in str(raised.value)
    return str(raised.value)


def own(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return config | {"dflash_config": config["dflash_config"] | fields}


def test_block_size_stands_beside_or_within_the_drafters_own_fields(tmp_path: Path) -> None:
    assert read(tmp_path, first_config([FULL], 8, block_size=16)).block_size == 16
    assert read(tmp_path, own(first_config([FULL], 8, block_size=None), block_size=7)).block_size == 7


def test_a_missing_block_size_is_an_error(tmp_path: Path) -> None:
    assert "block_size is missing" in error(tmp_path, first_config([FULL], 8, block_size=None))


@pytest.mark.parametrize(
    ("fields", "own_fields", "expected"),
    [
        ({}, {}, [True, False]),
        ({"is_causal": None}, {}, [True, False]),
        ({"is_causal": True}, {}, [True, True]),
        ({"is_causal": False}, {}, [False, False]),
        ({}, {"causal": False}, [False, False]),
        ({}, {"is_causal": True}, [True, True]),
    ],
)
def test_a_layer_is_causal_as_stated_or_else_when_it_slides(
    tmp_path: Path, fields: dict[str, Any], own_fields: dict[str, Any], expected: list[bool]
) -> None:
    config = read(tmp_path, own(first_config([SLIDING, FULL], 8), **own_fields) | fields)
    assert [config.causal(layer) for layer in range(2)] == expected


@pytest.mark.parametrize(
    ("draft_layers", "target_layers", "expected"),
    # Those that published checkpoints of these sizes state, but for the first.
    [(1, 36, (18,)), (5, 36, (1, 9, 17, 25, 33)), (5, 32, (1, 8, 15, 22, 29)), (5, 64, (1, 16, 31, 46, 61))],
)
def test_tapped_blocks_are_spread_evenly_where_none_are_stated(
    tmp_path: Path, draft_layers: int, target_layers: int, expected: tuple[int, ...]
) -> None:
    config = own(first_config([FULL] * draft_layers, target_layers), target_layer_ids=None)
    assert read(tmp_path, config).target_layer_ids == expected
    unsaid = config | {"num_target_layers": None}
    assert read(tmp_path, unsaid, target_layers).target_layer_ids == expected
    assert "num_target_layers is missing" in error(tmp_path, unsaid)


def test_layers_without_types_have_full_attention(tmp_path: Path) -> None:
    config = first_config([FULL, FULL], 8, layer_types=None, sliding_window=None, use_sliding_window=False)
    assert read(tmp_path, config).windows == (None, None)
    assert "layer_types is missing" in error(tmp_path, config | {"use_sliding_window": True})


def test_windows_are_those_of_the_sliding_layers(tmp_path: Path) -> None:
    assert read(tmp_path, first_config([SLIDING, FULL, SLIDING], 8, sliding_window=2048)).windows == (2048, None, 2048)
    assert "sliding_window is missing" in error(tmp_path, first_config([SLIDING], 8, sliding_window=None))


def test_scales_are_those_of_published_files_and_one_by_default(tmp_path: Path) -> None:
    plain = read(tmp_path, first_config([FULL], 8))
    assert (plain.input_embedding_scale, plain.output_multiplier, plain.final_logit_softcapping) == (1.0, 1.0, None)
    fields = {"input_embedding_scale": 2, "output_multiplier": 0.25, "final_logit_softcapping": 30.0}
    scaled = read(tmp_path, own(first_config([FULL], 8), **fields))
    assert (scaled.input_embedding_scale, scaled.output_multiplier, scaled.final_logit_softcapping) == (2, 0.25, 30)


def test_head_sizes_follow_from_the_others_where_they_are_missing(tmp_path: Path) -> None:
    config = read(tmp_path, first_config([FULL], 8, head_dim=None, num_key_value_heads=None))
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)


def test_dflash2_is_told_by_its_architecture_or_its_fields(tmp_path: Path) -> None:
    assert read(tmp_path, first_config([FULL], 8)).second is None
    for config in (second_config([FULL], 8), second_config([FULL], 8, architectures=None)):
        second = read(tmp_path, config).second
        assert second is not None
        assert (second.taps, second.group, second.rank, second.candidates) == (2, 16, 8, 6)


@pytest.mark.parametrize("name", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"])
def test_dflash2_needs_all_of_its_fields(tmp_path: Path, name: str) -> None:
    assert f"{name} is missing" in error(tmp_path, own(second_config([FULL], 8), **{name: None}))


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 1e7}, 1e7, {}),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, {}),
        ({"rope_parameters": {"rope_type": "default"}}, 1e4, {}),
        (
            {"rope_scaling": {"type": "yarn", "factor": 32, "original_max_position_embeddings": 8192}},
            1e4,
            {"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 8192},
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 64,
                    "beta_slow": 2.0,
                    "truncate": True,
                    "attention_factor": None,
                }
            },
            1e4,
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_slow": 2.0},
        ),
    ],
)
def test_rope_is_read_from_either_place(
    tmp_path: Path, fields: dict[str, Any], theta: float, scaling: dict[str, Any]
) -> None:
    rope = read(tmp_path, first_config([FULL], 8, **fields)).rope
    assert (rope.theta, rope.scaling) == (theta, scaling)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected one of silu"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"fc_norm": True}, "fc_norm is True"),
        ({"draft_vocab_size": 32}, "draft_vocab_size is 32"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'; expected a whole number"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; expected a positive number"),
        ({"layer_types": ["linear_attention"]}, "layer_types is ['linear_attention']"),
        ({"layer_types": [FULL, FULL]}, "expected 1 of"),
        ({"is_causal": "no"}, "is_causal is 'no'; expected true or false"),
        ({"block_size": 1}, "block_size is 1; expected a whole number of at least 2"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "expected rope_type one of"),
        ({"rope_scaling": YARN | {"attention_factor": 1.2}}, "rope_scaling is"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": None}}, "expected yarn with"),
        ({"rope_scaling": YARN | {"mscale": 0.7}}, "expected both of mscale and mscale_all_dim"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "expected numbers"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "expected no fields of default"),
        ({"dflash_config": {"target_layer_ids": [0]}}, "mask_token_id is missing"),
        ({"dflash_config": {"target_layer_ids": [-1], "mask_token_id": 3}}, "target_layer_ids is [-1]"),
        ({"dflash_config": {"target_layer_ids": [0.5], "mask_token_id": 3}}, "a list of int values"),
        ({"dflash_config": [1]}, "dflash_config is [1]"),
    ],
)
def test_what_is_not_supported_or_wrong_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    assert message in error(tmp_path, first_config([FULL], 8) | fields)


def test_groups_have_to_divide_the_channels(tmp_path: Path) -> None:
    assert "conv_group_size is 48" in error(tmp_path, own(second_config([FULL], 8), conv_group_size=48))
