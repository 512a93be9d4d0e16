"""The reference: what a node sees as a boolean mask, and MLX's own attention under it."""

from __future__ import annotations

import mlx.core as mx


def reference(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    ancestors: mx.array,
    *,
    scale: float,
    window: int | None = None,
    keep: int = 0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Arguments and result are those of `tree_attention`; any head size, any device."""
    mask = visible(ancestors, keys.shape[2], window, keep)
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=scale, mask=mask, sinks=None if sinks is None else sinks.astype(queries.dtype)
    )


def visible(ancestors: mx.array, columns: int, window: int | None = None, keep: int = 0) -> mx.array:
    """[N, columns] booleans: node i sees column c.

    With L = columns - N committed columns and depth_i = (bits of ancestors[i]) - 1, node i is at L + depth_i, column
    c < L at c, and column L + j where node j is. Of the tree, i sees the j whose bit is set. With a window, it sees the
    positions above L + depth_i - (window - keep) and those below keep.
    """
    nodes = ancestors.size
    above = ((ancestors[:, None] >> mx.arange(nodes, dtype=mx.uint32)) & 1).astype(mx.bool_)
    committed = columns - nodes
    seen = mx.concatenate([mx.ones((nodes, committed), dtype=mx.bool_), above], axis=1)
    if window is None:
        return seen
    places = committed + above.astype(mx.int32).sum(axis=1) - 1
    positions = mx.concatenate([mx.arange(committed, dtype=mx.int32), places])
    return seen & ((places[:, None] - positions < window - keep) | (positions < keep))
