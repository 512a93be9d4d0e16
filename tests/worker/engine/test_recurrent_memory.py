"""A pass in tree form needs memory for N rows, never for N states."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from recurrent_passes import chain_of, commit, deep_tree, instrumented, leaves, pass_over, tree_cache

from bench.families import tiny_model, vocabulary
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import flat
from worker.engine.verify.recurrent.discovery import find_mixers
from worker.engine.verify.recurrent.mixer import tree_mixer_class
from worker.engine.verify.recurrent.unroll import follow_by_path_unroll

NODES = 32
HEADS, WIDTH = 2, 512
GATED_DELTA = {
    "linear_num_value_heads": HEADS,
    "linear_num_key_heads": HEADS // 2,
    "linear_key_head_dim": WIDTH,
    "linear_value_head_dim": WIDTH,
}
KIMI_ATTENTION = {"num_heads": HEADS, "head_dim": WIDTH, "short_conv_kernel_size": 4}
KIMI = {"linear_attn_config": {**KIMI_ATTENTION, "kda_layers": [1, 2, 3], "full_attn_layers": [4]}}
MAMBA2 = {
    "num_heads": HEADS,
    "head_dim": WIDTH,
    "intermediate_size": HEADS * WIDTH,
    "state_size": WIDTH,
}
LARGE_STATES = {"qwen3_5": GATED_DELTA, "kimi_linear": KIMI, "mamba2": MAMBA2}
STATE = HEADS * WIDTH * WIDTH * 4


def states(cache: list[Any]) -> list[mx.array]:
    return [state for layer in flat(cache) if isinstance(layer, ArraysCache) for state in layer.cache]


def peaks_of(model: Any, tree: TokenTree) -> tuple[float, float]:
    """What a pass, and the pass with its commit, need at most beyond what was there before; in states of one layer."""
    cache = tree_cache(model, [5, 17, 3])
    mx.eval(states(cache))
    assert max(state.nbytes for state in states(cache)) == STATE
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(pass_over(model, tree, cache))
    of_pass = mx.get_peak_memory() - before
    commit(cache, tree, tree.path(len(tree) - 1))
    mx.eval(states(cache))
    return of_pass / STATE, (mx.get_peak_memory() - before) / STATE


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("name", LARGE_STATES)
def test_a_pass_in_tree_form_keeps_no_state_per_node(name: str, shape: str) -> None:
    model = tiny_model(name, **LARGE_STATES[name])
    assert set(instrumented(model).values()) == {"tree form"}
    tree = deep_tree(NODES, 6, vocabulary(name), seed=1) if shape == "tree" else chain_of(list(range(NODES)))
    of_pass, with_commit = peaks_of(model, tree)
    # Three layers; a state per node would take 96. On a CPU mlx-lm's own update takes a handful per layer, one token
    # after the other.
    assert of_pass < 8
    assert with_commit < 24


def test_the_measure_sees_the_states_of_a_path_unroll() -> None:
    model = tiny_model("qwen3_5", **GATED_DELTA)
    for mixer in find_mixers(model, lambda: make_prompt_cache(model)):
        mixer.module.__class__ = tree_mixer_class(type(mixer.module), "path unroll", follow_by_path_unroll)
    tree = deep_tree(12, 3, vocabulary("qwen3_5"), seed=1)
    of_pass, _ = peaks_of(model, tree)
    assert of_pass > len(leaves(tree)) > 3
