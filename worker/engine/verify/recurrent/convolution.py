"""A causal convolution over a tree: every node sees the rows of its own path, as far as the kernel reaches.

The input is [1, K - 1 + N, C]: the rows that the cache keeps of the prefix, then one row per node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from worker.engine.verify.tree_pass import TreePass


def kernel_size(conv: Any) -> int:
    """Rows that one output of an nn.Conv1d reads."""
    return int(conv.weight.shape[1])


def is_causal(conv: Any, x: mx.array, tokens: int) -> bool:
    """Whether an nn.Conv1d maps x, K - 1 rows of the past and `tokens` rows, to one output per token."""
    plain = (conv.stride, conv.padding, conv.dilation) == (1, 0, 1)
    return plain and x.shape[:2] == (1, kernel_size(conv) - 1 + tokens)


def tree_convolution(convolve: Callable[[mx.array], mx.array], size: int, x: mx.array, current: TreePass) -> mx.array:
    """[1, N, C'] of x, [1, size - 1 + N, C].

    `convolve` maps [batch, length, C] to [batch, length - size + 1, C'], as a layer with a kernel of `size` rows does.
    """
    assert x.shape[:2] == (1, size - 1 + current.nodes)
    if current.is_chain:
        return convolve(x)
    return convolve(mx.take(x.squeeze(0), current.windows(size), axis=0)).swapaxes(0, 1)


def rows_kept(x: mx.array, size: int, path: Sequence[int]) -> mx.array:
    """The [1, size - 1, C] rows that the cache keeps when the nodes of `path` are accepted."""
    rows = [*range(size - 1), *(size - 1 + node for node in path)]
    return mx.take(x, mx.array(rows[len(path) :]), axis=1)
