"""A back end's two kernels as one function: a pass over the spans of the context, and one that merges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from kernels.naming import named
from kernels.tree_attention.plan import SIMDGROUPS, plan
from kernels.tree_attention.problem import TreeAttention

THREADS = SIMDGROUPS * 32
SPLIT_INPUTS = ("queries", "keys", "values", "ancestors", "problem", "scale")
SPLIT_OUTPUTS = ("partial", "extremes")
MERGE_INPUTS = ("partial", "extremes", "sinks", "problem")
MERGE_OUTPUTS = ("out",)


def two_passes(
    factory: Callable[..., Any], *, split: str, merge: str, header: str, wanted_threadgroups: int
) -> TreeAttention:
    """split, merge, header: texts. The caches are read in their own strides, never copied."""
    over_spans = factory(
        name=named("tree_attention_split", header, split),
        input_names=list(SPLIT_INPUTS),
        output_names=list(SPLIT_OUTPUTS),
        source=split,
        header=header,
        ensure_row_contiguous=False,
    )
    merged = factory(
        name=named("tree_attention_merge", header, merge),
        input_names=list(MERGE_INPUTS),
        output_names=list(MERGE_OUTPUTS),
        source=merge,
        header=header,
    )

    def run(
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
        _, heads, nodes, size = queries.shape
        _, groups, columns, _ = keys.shape
        division = plan(nodes, heads, groups, columns, size, window, keep, wanted_threadgroups)
        partial, extremes = over_spans(
            inputs=[queries, keys, values, ancestors, mx.array(division.problem, dtype=mx.int32), scale],
            template=[("T", queries.dtype), ("D", size), ("ROWS", division.rows_per_simdgroup)],
            grid=(division.blocks * THREADS, groups, division.splits),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[(division.rows, division.splits, size), (division.rows, division.splits, 2)],
            output_dtypes=[mx.float32, mx.float32],
        )
        logits = mx.array([0.0]) if sinks is None else sinks.astype(mx.float32)
        (out,) = merged(
            inputs=[partial, extremes, logits, mx.array([division.splits, nodes], dtype=mx.int32)],
            template=[("T", queries.dtype), ("D", size), ("SINKS", sinks is not None)],
            grid=(division.rows * 32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[queries.shape],
            output_dtypes=[queries.dtype],
        )
        return out  # type: ignore[no-any-return]

    return run
