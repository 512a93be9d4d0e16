"""What a pass leaves of recurrent state: the accepted path and nothing else, to the bit where the sums are the same."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache
from recurrent_passes import (
    abandon,
    commit,
    deep_tree,
    instrumented,
    one_by_one,
    pass_over,
    relative_error,
    tree_cache,
)

from bench.families import tiny_model, vocabulary
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import flat
from worker.engine.verify.copies import copied_all

PREFIX = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]
# Families whose update of the state takes one token after the other. That of Mamba 2 sums over a chunk at once.
TOKEN_BY_TOKEN = ["qwen3_next", "olmo_hybrid", "kimi_linear", "bailing_moe_v3", "lfm2", "gear", "mamba", "rwkv7"]
BY_CHUNK = ["mamba2", "nemotron_h", "falcon_h1", "plamo2"]


def states(cache: Sequence[Any]) -> list[list[mx.array]]:
    """The recurrent state of each layer that has one."""
    return [list(layer.cache) for layer in flat(cache) if isinstance(layer, ArraysCache)]


def same_bits(state: Sequence[mx.array], other: Sequence[mx.array]) -> bool:
    return all(bool(mx.array_equal(mine, its)) for mine, its in zip(state, other, strict=True))


def committed(model: Any, tree: TokenTree, path: Sequence[int]) -> list[list[mx.array]]:
    cache = tree_cache(model, PREFIX)
    pass_over(model, tree, cache)
    commit(cache, tree, path)
    return states(cache)


@pytest.mark.parametrize("name", [*TOKEN_BY_TOKEN, *BY_CHUNK])
def test_the_committed_state_is_that_of_a_cold_pass(name: str) -> None:
    """To the bit in the first recurrent layer, where a tree gives the update the same rows as a sequence.

    Further up the rows come from other sums, so they and the state agree to float32 rounding.
    """
    model = tiny_model(name)
    instrumented(model)
    tree = deep_tree(12, 6, vocabulary(name), seed=5)
    path = tree.path(10)
    assert path != list(range(len(path)))
    state = committed(model, tree, path)
    tokens = [tree.tokens[node] for node in path]

    chunk = tree_cache(model, PREFIX)
    model(mx.array([tokens]), cache=chunk)
    assert same_bits(state[0], states(chunk)[0])
    single = tree_cache(model, PREFIX)
    one_by_one(model, tokens, single)
    assert same_bits(state[0], states(single)[0]) == (name in TOKEN_BY_TOKEN)
    for mine, its in zip(state, states(single), strict=True):
        assert all(relative_error(a, b) < 2e-5 for a, b in zip(mine, its, strict=True))


@pytest.mark.parametrize("name", [*TOKEN_BY_TOKEN, *BY_CHUNK])
def test_a_pass_that_is_abandoned_leaves_no_trace(name: str) -> None:
    model = tiny_model(name)
    instrumented(model)
    cache = tree_cache(model, PREFIX)
    untouched = copied_all(cache)
    tree = deep_tree(12, 6, vocabulary(name), seed=5)
    mx.eval(pass_over(model, tree, cache))
    abandon(cache, tree)
    assert all(same_bits(state, before) for state, before in zip(states(cache), states(untouched), strict=True))
    assert np.array_equal(one_by_one(model, [3, 4], cache), one_by_one(model, [3, 4], untouched))


def test_a_pass_that_fails_leaves_no_trace() -> None:
    model = tiny_model("qwen3_next")
    instrumented(model)
    cache = tree_cache(model, PREFIX)
    before = states(copied_all(cache))
    tree = deep_tree(12, 6, vocabulary("qwen3_next"), seed=5)
    lm_head = model.lm_head
    model.lm_head = None
    with pytest.raises(TypeError):
        pass_over(model, tree, cache)
    model.lm_head = lm_head
    abandon(cache, tree)
    assert all(same_bits(state, its) for state, its in zip(states(cache), before, strict=True))
    assert len(pass_over(model, tree, cache)) == len(tree)
