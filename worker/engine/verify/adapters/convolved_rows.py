"""Convolved keys and values (baichuan_m1): each row is mixed with the row before it, which is part of the state."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from worker.engine.verify.adapters.in_place import extend
from worker.engine.verify.caches.arrays import TreeArraysCache
from worker.engine.verify.tree_pass import active_pass

NOTE = "rows before the convolution"


class _ConvolvedAttention:
    """Attention with a causal convolution of two taps over the rows of keys and values."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """cache: (state of keys and values, their rows). A pass, a chain's too, leaves the state to the commit."""
        current = active_pass()
        if current is None or cache is None:
            output: mx.array = super().__call__(x, mask, cache)  # type: ignore[misc]
            return output
        rows = current.notes[NOTE] = []
        output = super().__call__(x, mask, cache)  # type: ignore[misc]
        cache[0].record(partial(_keep_last, rows))
        return output

    def _custom_convolution(self, u: mx.array, weights: mx.array, state: mx.array | None = None) -> mx.array:
        """u: [1, heads, N, head size] keys or values. state: [1, heads, 1, head size], the row before the tree."""
        convolve: Callable[..., mx.array] = super()._custom_convolution  # type: ignore[misc]
        current = active_pass()
        if current is None:
            return convolve(u, weights, state=state)
        current.notes[NOTE].append(u)
        if state is None:
            state = mx.zeros_like(u[:, :, :1])
        above = mx.concatenate([state, u], axis=2)[:, :, current.windows(2)[:, 0]]
        # Nodes become the batch axis: sequences of one row, each with its parent's row as the state.
        return convolve(u.swapaxes(0, 2), weights, state=above.swapaxes(0, 2)).swapaxes(0, 2)


def adapt_convolved_rows(module: Any) -> bool:
    """Let the convolution of `module` follow the tree."""
    if "conv_k" not in module or not hasattr(module, "_custom_convolution"):
        return False
    extend(module, _ConvolvedAttention)
    return True


def _keep_last(rows: list[mx.array], state: TreeArraysCache, path: Sequence[int]) -> None:
    """Advance the state to the last accepted node. rows: the unconvolved keys, then the values."""
    for slot, u in enumerate(rows):
        state[slot] = u[:, :, path[-1] : path[-1] + 1]
