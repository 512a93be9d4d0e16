"""A causal convolution over a tree: every node sees the rows of its own path, as far as the kernel reaches.

The input is [1, K - 1 + N, C]: the rows that the cache keeps of the prefix, then one row per node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from kernels.tree_convolution.problem import TreeConvolution
from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.verify.accepted import index_of
from worker.engine.verify.tree_pass import TreePass

MOST_TOKENS = 32  # of a sequence, as of the other kernels


def kernel_size(conv: Any) -> int:
    """Rows that one output of an nn.Conv1d reads."""
    return int(conv["weight"].shape[1])


def is_causal(conv: Any, x: mx.array, tokens: int) -> bool:
    """Whether an nn.Conv1d maps x, K - 1 rows of the past and `tokens` rows, to one output per token."""
    plain = (conv.stride, conv.padding, conv.dilation) == (1, 0, 1)
    return plain and x.shape[:2] == (1, kernel_size(conv) - 1 + tokens)


def tree_convolution(conv: Any, convolve: Callable[[mx.array], mx.array], x: mx.array, current: TreePass) -> mx.array:
    """[1, N, C'] of x, [1, K - 1 + N, C]: by the kernel of the pass, else by windows as a batch of sequences.

    `convolve` is the call of the nn.Conv1d `conv`: it maps [batch, length, C] to [batch, length - K + 1, C'].
    """
    size = kernel_size(conv)
    assert x.shape[:2] == (1, size - 1 + current.nodes)
    if current.is_chain:
        return sequence_convolution(conv, convolve, x, current.kernels)
    kernel = _kernel(conv, x, current.kernels)
    if kernel is not None:
        return kernel(x, conv.weight, current.windows(size), conv.get("bias"))
    return convolve(mx.take(x.squeeze(0), current.windows(size), axis=0)).swapaxes(0, 1)


def sequence_convolution(
    conv: Any, convolve: Callable[[mx.array], mx.array], x: mx.array, kernels: KernelSet
) -> mx.array:
    """conv(x) of rows that follow one another: by the kernel too, where they are few."""
    size = kernel_size(conv)
    tokens = x.shape[1] - size + 1
    kernel = _kernel(conv, x, kernels) if 0 < tokens <= MOST_TOKENS and is_causal(conv, x, tokens) else None
    return convolve(x) if kernel is None else kernel(x, conv.weight, _following(size, tokens), conv.get("bias"))


@lru_cache(maxsize=MOST_TOKENS)  # all layers have the same
def _following(size: int, tokens: int) -> mx.array:
    """The windows of a sequence."""
    return mx.array(np.arange(tokens, dtype=np.int32)[:, None] + np.arange(size, dtype=np.int32))


def _kernel(conv: Any, x: mx.array, kernels: KernelSet) -> TreeConvolution | None:
    if kernels is STOCK or not _is_depthwise(conv, x):
        return None
    return kernels.convolution(x.dtype, kernel_size(conv))


def _is_depthwise(conv: Any, x: mx.array) -> bool:
    """Whether conv(x) is what mlx.nn makes of one kernel for each channel, with weights of the type of x."""
    weight, dtype, channels = conv["weight"], x.dtype, x.shape[2]
    own_call = type(conv).__base__ is nn.Conv1d  # beneath the class that listens
    one_type = weight.dtype == dtype == conv.get("bias", x).dtype
    return own_call and one_type and conv.groups == channels == weight.shape[0]


def rows_kept(x: mx.array, size: int, path: Sequence[int]) -> mx.array:
    """The [1, size - 1, C] rows that the cache keeps when the nodes of `path` are accepted."""
    rows = [*range(size - 1), *(size - 1 + node for node in path)]
    return mx.take(x, index_of(rows[len(path) :]), axis=1)
