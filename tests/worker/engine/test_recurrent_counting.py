"""A model that can only count: what it says next is how many tokens its state has seen.

A rejected draft that stays in the state, or an accepted token that does not get there, makes a number go missing.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.ssm import ssm_update
from recurrent_passes import commit, pass_over

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt
from worker.engine.verify.recurrent import instrument_mixers

NUMBERS = 64


class MambaCounter(nn.Module):
    """Counts in a Mamba 2 state without decay: S + 1 * 1 per token."""

    def __call__(self, x: mx.array, cache: ArraysCache) -> mx.array:
        one = mx.ones((*x.shape[:2], 1, 1))
        never = mx.array([-float("inf")])
        step = (mx.ones((*x.shape[:2], 1)), mx.zeros((1,)))
        count, cache[0] = ssm_update(one, never, one, one, mx.zeros((1,)), *step, cache[0], (1.0, 1.0))
        return count[..., 0, 0]


class SumCounter(nn.Module):
    """Counts in a running sum, which has no tree form."""

    def __call__(self, x: mx.array, cache: ArraysCache) -> mx.array:
        before = mx.zeros((x.shape[0], 1)) if cache[0] is None else cache[0]
        count = before + mx.cumsum(mx.ones(x.shape[:2]), axis=1)
        cache[0] = count[:, -1:]
        return count


class ShiftCounter(nn.Module):
    """Says the number after the last but one's successor: the input shifted by one, through a convolution's state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 2, bias=False)
        self.conv.weight = mx.array([[[1.0], [0.0]]])

    def __call__(self, x: mx.array, cache: ArraysCache) -> mx.array:
        before = mx.zeros((x.shape[0], 1, 1)) if cache[0] is None else cache[0]
        rows = mx.concatenate([before, x[..., None].astype(mx.float32)], axis=1)
        cache[0] = rows[:, -1:]
        return self.conv(rows)[..., 0] + 2


class Counting(nn.Module):
    def __init__(self, counter: nn.Module) -> None:
        super().__init__()
        self.counter = counter

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        count = self.counter(tokens, cache[0])
        return -mx.abs(mx.arange(NUMBERS) - count[..., None])

    def make_cache(self) -> list[Any]:
        return [ArraysCache(1)]


def draft(pending: int) -> TokenTree:
    """Two wrong guesses beside and below the right ones."""
    tree = TokenTree(pending)
    tree.add(0, pending + 9, 1.0)
    right = tree.add(0, pending + 1, 1.0)
    tree.add(right, pending + 7, 1.0)
    return tree


@pytest.mark.parametrize(
    ("counter", "form"),
    [(MambaCounter, "tree form"), (SumCounter, "path unroll"), (ShiftCounter, "tree form")],
)
def test_counting_to_twenty_loses_no_number_though_drafts_are_rejected(counter: type[nn.Module], form: str) -> None:
    model = Counting(counter())
    assert instrument_mixers(model, model.make_cache) == {counter.__name__: form}
    cache = adopt(model.make_cache())
    model(mx.array([[0]]), cache=cache)
    text = [1]
    while len(text) < 20:
        tree = draft(text[-1])
        following = mx.argmax(pass_over(model, tree, cache), axis=-1).tolist()
        path = [0]
        while (child := tree.child(path[-1], following[path[-1]])) is not None:
            path.append(child)
        assert len(path) < len(tree)
        commit(cache, tree, path)
        text += [following[node] for node in path]
    assert text[:20] == list(range(1, 21))
