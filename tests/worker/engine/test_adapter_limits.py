"""Where passes of several nodes are not one-token decoding: block selection, and rope that depends on the pass."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from adapted_passes import (
    TOLERANCE,
    WRONG,
    chain_of,
    error,
    pass_error,
    prompt,
    tree_of,
)
from mlx_lm.models.cache import make_prompt_cache

from bench.families import tiny_model
from worker.engine.verify.adapters import apply_adapters
from worker.engine.verify.adapters.limits import BlockSelectionLimit, DynamicBaseLimit, TemperatureLimit

DYNAMIC = {"max_position_embeddings": 32, "rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 4.0}}
SMALL = tree_of((-1, 0, 0, 1, 1, 2))


def test_selection_begins_where_the_blocks_no_longer_fit() -> None:
    limit = BlockSelectionLimit(block_size=4, selected=3)
    assert [limit(0, 12), limit(6, 6), limit(6, 7), limit(12, 2), limit(500, 16)] == [
        "tree", "tree", "chain", "chain", "chain",
    ]  # fmt: skip


def test_the_temperature_steps_up_at_every_multiple_of_its_scale() -> None:
    limit = TemperatureLimit(floor_scale=8192)
    assert limit(0, 32) == "tree"
    assert limit(8159, 32) == "tree"  # the last of its slots counts as 8191
    assert limit(8160, 32) == "chain"  # as 8192
    assert limit(8191, 32) == "tree"


def test_a_dynamic_base_begins_to_move_where_the_pass_ends_past_the_context() -> None:
    limit = DynamicBaseLimit(context=32)
    assert [limit(0, 32), limit(26, 6), limit(27, 6), limit(32, 1)] == ["tree", "tree", "plain", "plain"]


def test_a_tree_is_exact_until_blocks_are_selected_and_a_chain_beyond() -> None:
    model = tiny_model("minimax_m3_sparse")  # attends to 3 blocks of 4 slots
    (limit,) = apply_adapters(model).limits
    assert limit(6, 6) == "tree"
    assert pass_error(model, prompt(6), SMALL) < TOLERANCE
    assert limit(20, 6) == "chain"
    assert pass_error(model, prompt(20), SMALL) > WRONG
    assert pass_error(model, prompt(20), chain_of(6)) < TOLERANCE


def test_full_attention_in_every_layer_has_no_limit() -> None:
    assert apply_adapters(tiny_model("minimax_m3_sparse", layer_types=["full_attention"] * 3)).limits == ()


@pytest.mark.parametrize("family", ["llama", "internlm3"])
def test_past_the_context_of_a_dynamic_base_only_one_token_decoding_is_exact(family: str) -> None:
    model = tiny_model(family, **DYNAMIC)
    adapters = apply_adapters(model)
    (limit,) = adapters.limits
    assert limit(26, 6) == "tree"
    assert pass_error(model, prompt(26), SMALL) < TOLERANCE
    assert limit(31, 6) == "plain"
    assert pass_error(model, prompt(31), chain_of(6)) > WRONG
    assert adapters.reusable == 32


def test_rows_do_not_depend_on_the_split_of_the_prompt_up_to_the_reusable_tokens() -> None:
    model = tiny_model("llama", **DYNAMIC)
    reusable = apply_adapters(model).reusable
    assert reusable is not None
    within, past = prompt(reusable), prompt(reusable + 12)
    assert error(last_logits(model, within, [20]), last_logits(model, within, [])) < TOLERANCE
    assert error(last_logits(model, past, [20]), last_logits(model, past, [20, reusable])) > WRONG


def last_logits(model: object, tokens: list[int], splits: list[int]) -> np.ndarray:
    """Logits after `tokens`, prefilled in passes that begin at 0 and at `splits`."""
    cache = make_prompt_cache(model)
    for start, end in itertools.pairwise([0, *splits, len(tokens)]):
        logits = model(mx.array([tokens[start:end]]), cache=cache)  # type: ignore[operator]
    return np.array(logits[0, -1])
