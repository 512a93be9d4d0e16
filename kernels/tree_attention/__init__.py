"""Attention of the nodes of a draft tree over a key/value cache in place."""

from __future__ import annotations

import mlx.core as mx

from kernels.tree_attention.choice import KERNEL, Configuration, chosen
from kernels.tree_attention.problem import DTYPES, HEAD_SIZES, MOST_NODES, check, has_kernel
from kernels.tree_attention.reference import reference

__all__ = ["DTYPES", "HEAD_SIZES", "KERNEL", "MOST_NODES", "Configuration", "chosen", "reference", "tree_attention"]


def tree_attention(
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
    """[1, Hq, N, D] softmax(scale * queries keys^T) values over what each node sees, in the dtype of the queries.

    queries: [1, Hq, N, D], up to 32 nodes in topological order. keys, values: [1, Hkv, T, D], T - N committed columns
    and behind them the rows of the tree; views of a larger buffer are read where they lie. Hq is a multiple of Hkv.
    ancestors: [N] uint32; bit j of entry i is set when node j is i or above it. scale: of the scores.
    window: positions that a node sees, its own included; None for all. A node's position is that of the last
    committed column plus the number of its ancestors, itself included. keep: the first columns, which stay visible
    and count as part of the window (a rotating cache's `keep`). sinks: [Hq] logits that join each head's denominator.

    Softmax and sums are float32. Runs the variant that `chosen` gives; head sizes outside HEAD_SIZES, mixed dtypes and
    values of another width run the reference. ValueError for shapes that do not fit.
    """
    check(queries, keys, values, ancestors, window, keep, sinks)
    run = chosen(queries.dtype, queries.shape[3]).run if has_kernel(queries, keys, values) else reference
    return run(queries, keys, values, ancestors, scale=scale, window=window, keep=keep, sinks=sinks)
