"""The context of block drafters after passes, rejections and returns, and what a block sees of it."""

import random
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from dflash_checkpoints import FULL, SLIDING, first_config, random_tensors, second_config, write
from dflash_comparison import ALL, WIDE, check_independent, hidden_states, reference
from drafter_rig import DrafterCase, Rig
from mlx_lm.models.cache import KVCache, RotatingKVCache

from bench.families import tiny_model
from worker.engine.drafters.dflash import load_dflash
from worker.engine.drafters.dflash.context import append, new_layer, with_block
from worker.engine.drafters.dflash.masks import block_mask
from worker.engine.drafters.protocol import DraftLimits


def rows(start: int, count: int) -> tuple[mx.array, mx.array]:
    """Keys and values [1, 2, count, 4] whose entries tell their position."""
    keys = mx.broadcast_to(mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None], (1, 2, count, 4))
    return keys, -keys


@pytest.mark.parametrize("window", [None, 2, 5, 40])
@pytest.mark.parametrize("steps", [[1] * 12, [12], [3, 1, 7, 1], [5, 5, 2]])
def test_a_layer_holds_the_same_rows_however_they_came(window: int | None, steps: list[int]) -> None:
    layer, given = new_layer(window), 0
    for step in steps:
        append(layer, rows(given, step))
        given += step
    assert layer.offset == given == 12
    first = 0 if window is None else max(0, 12 - (window - 1))
    keys, values = with_block(layer, rows(12, 3))
    assert keys[0, 1, :, 2].tolist() == list(range(first, 15))
    assert values[0, 0, :, 0].tolist() == [-place for place in range(first, 15)]
    # The block did not stay.
    assert layer.offset == 12
    keys, _ = with_block(layer, rows(12, 1))
    assert keys[0, 0, :, 0].tolist() == list(range(first, 13))


def test_a_window_keeps_no_more_rows_than_the_next_block_can_see() -> None:
    layer = new_layer(6)
    append(layer, rows(0, 300))
    assert isinstance(layer, RotatingKVCache)
    assert layer.keys.shape[2] == 5
    assert isinstance(new_layer(None), KVCache)


@pytest.mark.parametrize("window", [None, 40])
def test_rows_that_were_cut_from_the_end_are_gone(window: int | None) -> None:
    layer = new_layer(window)
    append(layer, rows(0, 12))
    assert layer.is_trimmable()
    layer.trim(4)
    append(layer, rows(100, 2))
    keys, _ = with_block(layer, rows(10, 1))
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 10]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 2, 3, 7, 12, 13, 64])
@pytest.mark.parametrize("tokens", [0, 1, 4, 9])
def test_a_mask_shows_what_the_distance_allows(tokens: int, window: int | None, causal: bool) -> None:
    slots, context = 4, tokens if window is None else min(tokens, window - 1)
    mask = block_mask(context, slots, window, causal)
    expected = np.zeros((slots, context + slots), dtype=bool)
    for query in range(slots):
        for place in range(context + slots):
            key = place - context
            near = window is None or abs(query - key) < window
            expected[query, place] = near and (key <= query or not causal)
    if mask is None:
        assert expected.all()
    elif isinstance(mask, str):
        assert (mask, expected.tolist()) == ("causal", np.tri(slots, context + slots, context, dtype=bool).tolist())
    else:
        assert mask.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_drafts_after_any_rejections_are_those_of_the_reference(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    target = tiny_model("qwen3")
    config = first_config([SLIDING, FULL], 3)
    tensors = random_tensors(config)
    directory = write(tmp_path, config, tensors)
    rig = Rig(DrafterCase(target, lambda: load_dflash(directory, target, ALL), 97))
    rig.prompt([rng.randrange(3, 97) for _ in range(9)], chunk=rng.choice([2, 5, 100]))
    for _ in range(6):
        tree = rig.draft(DraftLimits(20, 4))
        rig.accept(tree, rng.randrange(len(tree)), rng.randrange(3, 97))
    assert len(rig.tokens) > 16
    hidden = hidden_states(target, config, rig.tokens[:-1])
    _, logits = reference(config, tensors, target).logits(hidden, rig.tokens[-1], 5)
    check_independent(rig.draft(WIDE), logits)


def test_a_block_is_drafted_whole_however_shallow_the_tree(tmp_path: Path) -> None:
    target = tiny_model("llama")
    config = second_config([FULL], 3, is_causal=False)
    directory = write(tmp_path, config, random_tensors(config))
    rig = Rig(DrafterCase(target, lambda: load_dflash(directory, target, ALL), 97))
    rig.prompt([5, 17, 3, 88, 41])
    deep, shallow = rig.draft(DraftLimits(121, 4)), rig.draft(DraftLimits(121, 1))
    assert [shallow.tokens[node] for node in shallow.children(0)] == [deep.tokens[node] for node in deep.children(0)]
    assert shallow.max_depth == 1
    for node in shallow.children(0):
        twin = deep.child(0, shallow.tokens[node])
        assert twin is not None
        assert shallow.confidences[node] == pytest.approx(deep.confidences[twin], rel=1e-5)
