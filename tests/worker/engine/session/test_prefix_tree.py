"""The tree of prefixes: what is shared, what is dropped first, and what it all weighs."""

import gc
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from worker.engine.session import PrefixTree, prefix_tree

TOKEN_BYTES = 4 * (3 + 2)
"""Of the rows of one token: float32 keys of width 3 and values of width 2."""
STATE_BYTES = 4 * 6


def rows(tokens: Sequence[int]) -> KVCache:
    layer = KVCache()
    column = mx.array(tokens, dtype=mx.float32)[None, None, :, None]
    layer.update_and_fetch(mx.repeat(column, 3, axis=-1), mx.repeat(column, 2, axis=-1) + 0.5)
    return layer


def state(tokens: Sequence[int]) -> ArraysCache:
    """Six numbers that say which tokens they stand for."""
    layer = ArraysCache(1)
    layer[0] = mx.full((6,), float(sum(place * token for place, token in enumerate(tokens, 1))))
    return layer


def held(layer: KVCache) -> list[int]:
    """The tokens whose rows the layer has; keys and values agree."""
    keys, values = (np.array(part[0, 0, : layer.offset]) for part in (layer.keys, layer.values))
    assert (keys == keys[:, :1]).all()
    assert (values == keys[:, :1] + 0.5).all()
    return [int(token) for token in keys[:, 0]]


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def keep_rows(tree: PrefixTree, prompt: list[int]) -> None:
    tree.insert(prompt, [rows(prompt)])


def keep(tree: PrefixTree, prompt: list[int]) -> None:
    """Rows and a state."""
    tree.insert(prompt, [rows(prompt), state(prompt)])


A, B, C = tokens(100, 10), tokens(200, 10), tokens(300, 10)
SYSTEM = tokens(0, 20)


def test_a_shared_prefix_is_stored_once() -> None:
    tree = PrefixTree(10**6)
    keep_rows(tree, SYSTEM + A)
    assert tree.nbytes == 30 * TOKEN_BYTES
    keep_rows(tree, SYSTEM + B)
    assert tree.nbytes == 40 * TOKEN_BYTES
    keep_rows(tree, SYSTEM[:7] + C)
    assert tree.nbytes == 50 * TOKEN_BYTES
    keep_rows(tree, SYSTEM)
    keep_rows(tree, SYSTEM + A[:4])
    assert tree.nbytes == 50 * TOKEN_BYTES
    keep_rows(tree, SYSTEM + A + C)
    assert tree.nbytes == 60 * TOKEN_BYTES


def test_rows_are_restored_at_any_position() -> None:
    tree = PrefixTree(10**6)
    prompts = [SYSTEM + A, SYSTEM + B, SYSTEM[:7] + C]
    for prompt in prompts:
        keep_rows(tree, prompt)
    for prompt in prompts:
        for length in range(1, len(prompt) + 1):
            assert tree.usable(prompt[:length]) == length
            (layer,) = tree.restore(prompt[:length], [KVCache()], room=300)
            assert held(layer) == prompt[:length]
            # Room for 300 tokens, in steps of 256.
            assert layer.keys.shape[-2] == 512
    assert tree.usable([*SYSTEM, 999]) == 20
    assert tree.usable([999]) == tree.usable([]) == 0


def test_a_state_is_restored_where_it_was_kept_and_nowhere_else() -> None:
    tree = PrefixTree(10**6)
    keep(tree, SYSTEM + A)
    assert tree.known(SYSTEM + B) == 20
    assert [tree.usable((SYSTEM + A)[:length]) for length in (0, 20, 29, 30)] == [0, 0, 0, 30]
    keep(tree, SYSTEM + B)
    # The edge was split at 20, and nobody kept a state there.
    assert [tree.usable((SYSTEM + B)[:length]) for length in (20, 29, 30)] == [0, 0, 30]
    keep(tree, SYSTEM)
    assert [tree.usable((SYSTEM + A + C)[:length]) for length in (19, 20, 29, 30, 35)] == [0, 20, 20, 30, 30]
    assert tree.nbytes == 40 * TOKEN_BYTES + 3 * STATE_BYTES
    for prompt in (SYSTEM, SYSTEM + A, SYSTEM + B):
        layers = tree.restore(prompt, [KVCache(), ArraysCache(1)], room=len(prompt))
        assert held(layers[0]) == prompt
        assert layers[1][0].tolist() == state(prompt)[0].tolist()
    with pytest.raises(AssertionError):
        tree.restore(SYSTEM[:19], [KVCache(), ArraysCache(1)], room=20)


def test_the_least_recently_used_leaf_goes_first() -> None:
    tree = PrefixTree(40 * TOKEN_BYTES)
    keep_rows(tree, SYSTEM + A)
    keep_rows(tree, SYSTEM + B)
    tree.restore(SYSTEM + A[:1], [KVCache()], room=30)
    keep_rows(tree, SYSTEM + C)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [30, 20, 30]
    assert tree.nbytes == 40 * TOKEN_BYTES
    # Looking is not using: A goes, although it was looked up just now.
    keep_rows(tree, SYSTEM + B)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [20, 30, 30]
    # To be asked for by a prompt is to be used, and so is to be kept again.
    tree.known(SYSTEM + C + A)
    keep_rows(tree, SYSTEM + A)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [30, 20, 30]
    keep_rows(tree, SYSTEM + B)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [30, 30, 20]
    keep_rows(tree, SYSTEM + C)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [20, 30, 30]
    keep_rows(tree, SYSTEM + C)
    keep_rows(tree, SYSTEM + A)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B, C)] == [30, 20, 30]


def test_a_shared_prefix_stays_as_long_as_something_hangs_on_it() -> None:
    tree = PrefixTree(45 * TOKEN_BYTES)
    keep_rows(tree, SYSTEM + A)
    keep_rows(tree, SYSTEM + B)
    # 25 tokens of another prompt: both questions have to go, and then the prefix.
    other = tokens(500, 25)
    keep_rows(tree, other)
    assert [tree.usable(SYSTEM + tail) for tail in (A, B)] == [20, 20]
    keep_rows(tree, tokens(600, 10))
    assert tree.usable(SYSTEM) == 0
    assert tree.usable(other) == 25


def test_a_prompt_never_drops_the_prefix_it_hangs_on() -> None:
    tree = PrefixTree(25 * TOKEN_BYTES)
    keep_rows(tree, SYSTEM + A[:5])
    # 30 in all are too many; what is there is left alone.
    keep_rows(tree, SYSTEM + B)
    assert tree.usable(SYSTEM + A) == 25
    # 25 with its prefix: the other leaf has to go, not the prefix.
    keep_rows(tree, SYSTEM + B[:5])
    assert (tree.usable(SYSTEM + A), tree.usable(SYSTEM + B)) == (20, 25)
    assert tree.nbytes == 25 * TOKEN_BYTES


@pytest.mark.parametrize("budget", [0, 29 * TOKEN_BYTES, 30 * TOKEN_BYTES + STATE_BYTES - 1])
def test_what_does_not_fit_is_not_kept(budget: int) -> None:
    tree = PrefixTree(budget)
    keep(tree, SYSTEM + A)
    assert (tree.nbytes, tree.known(SYSTEM), tree.usable(SYSTEM + A)) == (0, 0, 0)


def test_a_state_may_be_all_that_a_position_lacks() -> None:
    tree = PrefixTree(10**6)
    keep(tree, SYSTEM + A)
    keep(tree, SYSTEM)
    assert tree.nbytes == 30 * TOKEN_BYTES + 2 * STATE_BYTES
    keep(tree, SYSTEM)
    assert tree.nbytes == 30 * TOKEN_BYTES + 2 * STATE_BYTES


def test_a_model_without_rows_costs_its_states() -> None:
    tree = PrefixTree(2 * STATE_BYTES)
    for prompt in (SYSTEM, SYSTEM + A, SYSTEM + B):
        tree.insert(prompt, [state(prompt)])
    # The three are on one branch but for the last, which drops the leaf before it.
    assert [tree.usable(prompt) for prompt in (SYSTEM, SYSTEM + A, SYSTEM + B)] == [20, 20, 30]
    assert tree.nbytes == 2 * STATE_BYTES


def test_layers_that_the_model_never_fills_stay_empty() -> None:
    tree = PrefixTree(10**6)
    tree.insert(SYSTEM, [KVCache(), rows(SYSTEM)])
    unused, used = tree.restore(SYSTEM, [KVCache(), KVCache()], room=20)
    assert unused.empty()
    assert unused.offset == 0
    assert held(used) == SYSTEM


def test_rows_that_are_not_one_per_token_are_not_kept() -> None:
    tree = PrefixTree(10**6)
    tree.insert(SYSTEM, [rows(SYSTEM), rows(SYSTEM[:5])])
    assert tree.nbytes == 0


def test_an_insert_that_is_broken_off_leaves_an_empty_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = PrefixTree(10**6)
    keep(tree, SYSTEM + A)

    def too_late(_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prefix_tree, "states_of", too_late)
        with pytest.raises(KeyboardInterrupt):
            keep(tree, SYSTEM + B)
    assert (tree.nbytes, tree.usable(SYSTEM + A)) == (0, 0)
    keep(tree, SYSTEM + B)
    assert (tree.nbytes, tree.usable(SYSTEM + B)) == (30 * TOKEN_BYTES + STATE_BYTES, 30)


# Memory as MLX counts it, in megabytes: a layer of 4096 float32 rows of width 128, twice.
MEGABYTE = 2**20


def large(count: int) -> KVCache:
    layer = KVCache()
    for _ in range(count // 512):
        layer.update_and_fetch(mx.ones((1, 1, 512, 128)), mx.ones((1, 1, 512, 128)))
    mx.eval(layer.keys, layer.values)
    return layer


def megabytes() -> float:
    mx.clear_cache()
    gc.collect()  # what earlier tests left in cycles would go in the middle of this one
    return mx.get_active_memory() / MEGABYTE


def test_memory_is_that_of_the_snapshots_and_goes_with_them() -> None:
    tree, before = PrefixTree(5 * MEGABYTE), megabytes()
    live = large(4096)
    assert megabytes() - before == pytest.approx(4, abs=0.1)
    tree.insert(tokens(0, 4096), [live])
    assert tree.nbytes == 4 * MEGABYTE
    del live
    assert megabytes() - before == pytest.approx(4, abs=0.1)
    # A fork in the middle: the edge is split, and its rows with it.
    tree.insert([*tokens(0, 2048), *tokens(9000, 1024)], [large(3072)])
    assert tree.nbytes == 5 * MEGABYTE
    assert megabytes() - before == pytest.approx(5, abs=0.1)
    # 3 MB of others drop both leaves, 1 MB and 2 MB; the shared 2 MB stay.
    tree.insert(tokens(20000, 3072), [large(3072)])
    assert (tree.nbytes, tree.usable(tokens(0, 4096))) == (5 * MEGABYTE, 2048)
    assert megabytes() - before == pytest.approx(5, abs=0.1)
    restored = tree.restore(tokens(0, 1024), [KVCache()], room=1025)
    assert megabytes() - before == pytest.approx(5 + 1.25, abs=0.1)
    del restored
    tree.clear()
    assert tree.nbytes == 0
    assert megabytes() == pytest.approx(before, abs=0.1)


def test_a_snapshot_does_not_keep_the_live_buffer_in_memory() -> None:
    tree, before = PrefixTree(10 * MEGABYTE), megabytes()
    live = large(4096)
    live.trim(4096 - 10)
    tree.insert(tokens(0, 10), [live])
    window = RotatingKVCache(max_size=64)
    window.update_and_fetch(mx.ones((1, 1, 4096, 128)), mx.ones((1, 1, 4096, 128)))
    tree.insert(tokens(10000, 4096), [window])
    del live, window
    assert tree.nbytes == 2 * 4 * 128 * (10 + 64)
    assert megabytes() - before == pytest.approx(tree.nbytes / MEGABYTE, abs=0.05)
