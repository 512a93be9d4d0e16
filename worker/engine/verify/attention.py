"""Attention of tree passes: one permanent hook on MLX's attention primitive, active only inside a tree pass.

mlx-lm's models attend through `mx.fast.scaled_dot_product_attention` over every cache that is not quantised. Where the
kernels of the pass fit, they are told in numbers what the mask says, and nobody computes the mask. A mask that a model
has changed (converted, cut, added to) is no longer the one that the pass made, and MLX's own attention reads it.
"""

from typing import Any

import mlx.core as mx

from kernels.tree_attention.problem import MOST_NODES, has_kernel
from worker.engine.verify.tree_pass import TreePass, active_pass

_attention = mx.fast.scaled_dot_product_attention


def _tree_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: Any = None,
    sinks: mx.array | None = None,
    **options: Any,
) -> mx.array:
    current = active_pass()
    if current is not None and not options:
        output = _by_kernel(current, q, k, v, scale, mask, sinks)
        if output is not None:
            return output
    return _attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)


def _by_kernel(
    current: TreePass,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Any,
    sinks: mx.array | None,
) -> mx.array | None:
    """None where a kernel does not fit."""
    if queries.ndim != 4 or queries.shape[0] != 1 or queries.shape[2] != current.nodes or current.nodes > MOST_NODES:
        return None
    sight = current.sight(mask, keys.shape[2])
    if sight is None or not has_kernel(queries, keys, values):
        return None
    kernel = current.kernels.attention(queries.dtype, queries.shape[3])
    if kernel is None:
        return None
    bits = current.ancestor_bits
    return kernel(queries, keys, values, bits, scale=scale, window=sight.window, keep=sight.keep, sinks=sinks)


def install_attention_hook() -> None:
    """Hook the primitive, once and for good: removing it could strip it from under another thread's pass."""
    mx.fast.scaled_dot_product_attention = _tree_attention
