"""Which modules own recurrent state, and what is found out about each by watching it."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache
from mlx_lm.models.gated_delta import gated_delta_update
from recurrent_passes import along_paths, commit, deep_tree, leaves, one_by_one, pass_over, relative_error

from worker.engine.verify.caches import adopt
from worker.engine.verify.copies import copied_all
from worker.engine.verify.recurrent import instrument_mixers
from worker.engine.verify.recurrent.discovery import find_mixers
from worker.engine.verify.tree_pass import active_pass

VOCABULARY, WIDTH, KERNEL = 23, 8, 3


class Convolved(nn.Module):
    """Two short convolutions, whose states go into the slots in the reverse order; the cache is an option."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH)
        self.second = nn.Conv1d(WIDTH, WIDTH, KERNEL)

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        for slot, conv in ((1, self.first), (0, self.second)):
            zeros = mx.zeros((x.shape[0], KERNEL - 1, WIDTH))
            rows = mx.concatenate([zeros if memory[slot] is None else memory[slot], x], axis=1)
            memory[slot] = rows[:, 1 - KERNEL :]
            x = mx.tanh(conv(rows)) * scale
        return x


class GatedDelta(nn.Module):
    """The gated delta rule alone; `kept` is what the cache keeps of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH + 2)

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        q, k, v, gates = mx.split(self.project(x)[:, :, None], [WIDTH, 2 * WIDTH, 3 * WIDTH], axis=-1)
        state = None if memory[0] is None else self.used(memory[0])
        rates = (gates[..., 0], gates[..., 1], mx.zeros((1,)), mx.zeros((1,)))
        y, state = gated_delta_update(q / WIDTH, k / WIDTH, v, *rates, state)
        memory[0] = self.kept(state)
        return y[:, :, 0] * scale

    def kept(self, state: mx.array) -> mx.array:
        return state

    def used(self, state: mx.array) -> mx.array:
        return state


class HalvedState(GatedDelta):
    """Does something of its own with the state."""

    def kept(self, state: mx.array) -> mx.array:
        return state / 2

    def used(self, state: mx.array) -> mx.array:
        return state * 2


class ShiftedToo(Convolved):
    """A third slot that no convolution explains."""

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        last = mx.zeros((x.shape[0], 1, WIDTH)) if memory[2] is None else memory[2]
        shifted = mx.concatenate([last, x[:, :-1]], axis=1)
        memory[2] = x[:, -1:]
        return super().__call__(x + shifted, scale=scale, memory=memory)


class Shift(nn.Module):
    """A part of a mixer that is handed the cache itself."""

    def __call__(self, x: mx.array, memory: ArraysCache) -> mx.array:
        last = mx.zeros((x.shape[0], 1, WIDTH)) if memory[1] is None else memory[1]
        memory[1] = x[:, -1:]
        return mx.concatenate([last, x[:, :-1]], axis=1)


class HandsOn(nn.Module):
    """Keeps a sum of its own, and hands the cache on to a part that keeps something else."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = Shift()

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        total = mx.cumsum(x, axis=1) + (0 if memory[0] is None else memory[0])
        memory[0] = total[:, -1:]
        return mx.tanh(total + self.shift(x, memory)) * scale


class OnlyHandsOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Convolved()

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        return self.inner(x, scale=scale, memory=memory)


class Looking(nn.Module):
    """A convolution that pads by itself, so that it also looks ahead; its output is cut to the past."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL - 1)

    def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
        zeros = mx.zeros((x.shape[0], KERNEL - 1, WIDTH))
        rows = mx.concatenate([zeros if memory[0] is None else memory[0], x], axis=1)
        memory[0] = rows[:, 1 - KERNEL :]
        return self.conv(rows)[:, KERNEL - 1 : 1 - KERNEL] * scale


class Model(nn.Module):
    """One mixer between an embedding and logits; the cache may be within a list."""

    def __init__(self, mixer: nn.Module, within_list: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mixer = mixer
        self.within_list = within_list

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        memory = cache[0][0] if self.within_list else cache[0]
        return self.embedding.as_linear(self.mixer(self.embedding(tokens), scale=0.5, memory=memory))

    def make_cache(self) -> list[Any]:
        return [CacheList(ArraysCache(3)) if self.within_list else ArraysCache(3)]


MIXERS: dict[type[nn.Module], dict[str, str]] = {
    Convolved: {"Convolved": "tree form"},
    GatedDelta: {"GatedDelta": "tree form"},
    OnlyHandsOn: {"Convolved": "tree form"},
    HalvedState: {"HalvedState": "path unroll"},
    ShiftedToo: {"ShiftedToo": "path unroll"},
    HandsOn: {"HandsOn": "path unroll"},
    Looking: {"Looking": "path unroll"},
}


@pytest.mark.parametrize("within_list", [False, True], ids=["alone", "within a list"])
@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.__name__)
def test_a_mixer_nobody_has_seen_follows_trees_all_the_same(mixer: type[nn.Module], within_list: bool) -> None:
    mx.random.seed(1)
    model = Model(mixer(), within_list)
    assert instrument_mixers(model, model.make_cache) == MIXERS[mixer]
    cache = adopt(model.make_cache())
    one_by_one(model, [3, 1, 4], cache)
    before = copied_all(cache)
    tree = deep_tree(10, 5, VOCABULARY, seed=3)
    logits = np.array(pass_over(model, tree, cache))
    assert relative_error(logits, along_paths(model, tree, before)) < 1e-5
    path = tree.path(9)
    commit(cache, tree, path)
    one_by_one(model, [tree.tokens[node] for node in path], before)
    assert relative_error(one_by_one(model, [5, 9], cache), one_by_one(model, [5, 9], before)) < 1e-5


def test_finding_mixers_changes_no_module_and_no_result() -> None:
    model = Model(Convolved())
    tokens = mx.array([[1, 2, 3]])
    logits = model(tokens, model.make_cache())
    classes = [type(module) for module in model.modules()]
    [mixer] = find_mixers(model, model.make_cache)
    assert mixer.module is model.mixer
    assert [type(module) for module in model.modules()] == classes
    assert mx.array_equal(model(tokens, model.make_cache()), logits)


def test_a_model_that_fails_gets_its_classes_back() -> None:
    model = Model(Convolved())
    classes = [type(module) for module in model.modules()]
    with pytest.raises(IndexError):
        find_mixers(model, lambda: [ArraysCache(1)])
    assert [type(module) for module in model.modules()] == classes
    assert instrument_mixers(model, model.make_cache) == {"Convolved": "tree form"}


def test_a_mixer_that_is_used_by_several_layers_is_one_mixer() -> None:
    class Twice(Model):
        def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
            x = self.mixer(self.embedding(tokens), scale=0.5, memory=cache[0])
            return self.embedding.as_linear(self.mixer(x, scale=0.5, memory=cache[1]))

        def make_cache(self) -> list[Any]:
            return [ArraysCache(2), ArraysCache(2)]

    model = Twice(Convolved())
    [mixer] = find_mixers(model, model.make_cache)
    assert mixer.module is model.mixer
    assert mixer.plan is not None


def test_a_module_with_another_kind_of_cache_is_no_mixer() -> None:
    class Attending(nn.Module):
        def __call__(self, x: mx.array, *, scale: float, memory: Any) -> mx.array:
            return x

    model = Model(Attending())
    assert find_mixers(model, lambda: [KVCache()]) == []


def test_a_mixer_run_by_path_is_in_no_pass() -> None:
    seen = []

    class Aware(ShiftedToo):
        def __call__(self, x: mx.array, *, scale: float, memory: ArraysCache) -> mx.array:
            seen.append((active_pass(), x.shape[:2]))
            return super().__call__(x, scale=scale, memory=memory)

    model = Model(Aware())
    instrument_mixers(model, model.make_cache)
    tree = deep_tree(10, 5, VOCABULARY, seed=3)
    seen.clear()
    pass_over(model, tree, adopt(model.make_cache()))
    assert seen == [(None, (len(leaves(tree)), tree.max_depth + 1))]
