"""Chain verification restores caches of any class, and keeps nothing of a pass that nobody ends."""

import weakref
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache
from tiny_models import tiny_model

from worker.engine.tree import TokenTree
from worker.engine.verify.restoring import RestoringPass
from worker.engine.verify.verifier import Verifier, evaluate


def chain_of(*tokens: int) -> TokenTree:
    tree = TokenTree(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 0.5)
    return tree


class CountingCache:
    """A class of its own that counts in a scalar and keeps its sum in an object of its own."""

    def __init__(self) -> None:
        self.count = mx.array(0)
        self.part = SimpleNamespace(sum=mx.zeros((1,)))

    def update(self, tokens: mx.array) -> None:
        self.count += tokens.size
        self.part.sum[0] = self.part.sum[0] * 10 + tokens.sum()

    @property
    def values(self) -> tuple[int, float]:
        return int(self.count.item()), float(self.part.sum.item())


def append(cache: list[Any], tokens: mx.array) -> mx.array:
    """Append `tokens` [1, N] to two KV caches, of which one is in a list, and to a CountingCache."""
    rows = tokens[:, None, :, None].astype(mx.float32)
    cache[0].update_and_fetch(rows, rows)
    cache[1][0].update_and_fetch(rows, rows)
    cache[1][1].update(tokens)
    return tokens


def held(cache: list[Any]) -> Any:
    rows = [layer.keys[0, 0, : layer.offset, 0].tolist() for layer in (cache[0], cache[1][0])]
    return [*rows, cache[1][1].values]


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_the_accepted_part_is_kept_by_the_very_objects_that_the_model_knows(accepted: int) -> None:
    cache = [KVCache(), CacheList(KVCache(), CountingCache())]
    append(cache, mx.array([[7, 8]]))
    objects = [cache[0], cache[1], *cache[1].caches]
    tree = chain_of(1, 2, 3)
    restoring = RestoringPass(cache)
    append(cache, mx.array([tree.tokens]))
    restoring.commit(tree, list(range(accepted)), lambda tokens: append(cache, tokens))
    kept = [7, 8, 1, 2, 3][: 2 + accepted]
    # The pass is one update of the sum, and so is the part of it that is run again.
    assert held(cache) == [kept, kept, (len(kept), 150 + sum(kept[2:]))]
    assert all(one is other for one, other in zip(objects, [cache[0], cache[1], *cache[1].caches], strict=True))


def test_rows_within_a_list_of_caches_are_written_in_place() -> None:
    cache = [CacheList(KVCache(), KVCache())]
    for count in (2**14 - 8, 4):  # the second update gives every array a buffer of its own
        write(cache, count)
    buffer, before = cache[0][0].keys.nbytes, mx.get_active_memory()
    assert before >= 4 * buffer
    mx.reset_peak_memory()
    restoring = RestoringPass(cache)
    write(cache, 4)
    restoring.abandon(4)
    assert [member.offset for member in cache[0].caches] == [2**14 - 4] * 2
    assert mx.get_peak_memory() - before < buffer / 2


def write(cache: list[Any], count: int) -> None:
    for member in cache[0].caches:
        member.update_and_fetch(mx.ones((1, 1, count, 64)), mx.ones((1, 1, count, 64)))
    evaluate(cache)


def test_a_pass_that_nobody_ends_keeps_no_old_cache_alive() -> None:
    model = tiny_model("gemma3_text")
    verifier = Verifier(model, "chain")
    cache = verifier.new_cache()
    assert any(isinstance(layer, RotatingKVCache) for layer in cache)
    verifier.prefill([5, 17, 3], cache)
    verifier.forward(chain_of(4, 8, 15), cache)
    alive = [weakref.ref(layer) for layer in cache]
    cache = verifier.new_cache()
    assert [layer() for layer in alive] == [None] * len(alive)
    logits = np.array(verifier.step(mx.array([5]), cache))
    np.testing.assert_array_equal(logits, np.array(verifier.step(mx.array([5]), verifier.new_cache())))


def test_evaluating_a_cache_reaches_arrays_in_objects_of_its_own() -> None:
    lazy = mx.zeros((2**20,)) + 1
    before = mx.get_active_memory()
    evaluate([SimpleNamespace(part=SimpleNamespace(arrays=[(lazy, None)]))])
    assert mx.get_active_memory() - before > lazy.nbytes / 2
