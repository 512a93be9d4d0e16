"""A back end's kernels as one function: one launch where a span is the whole context, else a walk and a merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import mlx.core as mx

from kernels.naming import named
from kernels.tree_attention.plan import SIMDGROUPS, plan
from kernels.tree_attention.problem import TreeAttention

THREADS = SIMDGROUPS * 32
WALK_INPUTS = ("queries", "keys", "values", "ancestors", "problem", "scale")
SPAN_OUTPUTS = ("partial", "extremes")
MERGE_INPUTS = ("partial", "extremes", "sinks", "problem")
OUTPUTS = ("out",)


@dataclass(frozen=True)
class Texts:
    """walk: over one span. span: its end where other spans follow. whole: its end where none does. merge: of spans."""

    header: str
    walk: str
    span: str
    whole: str
    merge: str


@dataclass(frozen=True)
class Launch:
    """What calls of one division have in common: the kernel's numbers, and the keyword arguments of the launch."""

    problem: mx.array
    arguments: dict[str, Any]


def passes(factory: Callable[..., Any], texts: Texts, *, wanted_threadgroups: int) -> TreeAttention:
    """The caches are read in their own strides, never copied.

    The layers of a model ask for the same division of the same problem: what depends on it alone is made once.
    """

    def made(name: str, text: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        return factory(
            name=named(f"tree_attention_{name}", texts.header, text),
            input_names=list(inputs),
            output_names=list(outputs),
            source=text,
            header=texts.header,
            ensure_row_contiguous=False,
        )

    over_a_span = made("span", texts.walk + texts.span, WALK_INPUTS, SPAN_OUTPUTS)
    over_the_whole = made("whole", texts.walk + texts.whole, [*WALK_INPUTS, "sinks"], OUTPUTS)
    merged = made("merge", texts.merge, MERGE_INPUTS, OUTPUTS)

    @lru_cache(maxsize=64)
    def launches(
        shape: tuple[int, ...],
        dtype: mx.Dtype,
        groups: int,
        columns: int,
        window: int | None,
        keep: int,
        sinks: mx.Dtype | None,
    ) -> tuple[Launch, Launch | None]:
        """Of the walk, and of the merge where there are spans to merge. shape: of the queries."""
        _, heads, nodes, size = shape
        division = plan(nodes, heads, groups, columns, size, window, keep, wanted_threadgroups)
        of_result: dict[str, Any] = {"output_shapes": [shape], "output_dtypes": [dtype]}
        of_sinks = [("SINKS", sinks is not None), ("S", sinks or mx.float32)]
        of_rows = [("T", dtype), ("D", size), ("ROWS", division.rows_per_simdgroup)]
        of_walk: dict[str, Any] = {
            "grid": (division.blocks * THREADS, groups, division.splits),
            "threadgroup": (THREADS, 1, 1),
        }
        problem = mx.array(division.problem, dtype=mx.int32)
        if division.splits == 1:
            return Launch(problem, {"template": of_rows + of_sinks, **of_walk, **of_result}), None
        sums = (division.rows, division.splits)
        of_sums = {"output_shapes": [(*sums, size), (*sums, 2)], "output_dtypes": [mx.float32, mx.float32]}
        of_merge = {
            "template": [("T", dtype), ("D", size), *of_sinks],
            "grid": (division.rows * 32, 1, 1),
            "threadgroup": (32, 1, 1),
            **of_result,
        }
        return (
            Launch(problem, {"template": of_rows, **of_walk, **of_sums}),
            Launch(mx.array([division.splits, nodes], dtype=mx.int32), of_merge),
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
        _, groups, columns, _ = keys.shape
        kind = None if sinks is None else sinks.dtype
        walk, merge = launches(queries.shape, queries.dtype, groups, columns, window, keep, kind)
        logits = _no_sinks() if sinks is None else sinks
        inputs = [queries, keys, values, ancestors, walk.problem, _scale(scale)]
        if merge is None:
            (out,) = over_the_whole(inputs=[*inputs, logits], **walk.arguments)
        else:
            sums = over_a_span(inputs=inputs, **walk.arguments)
            (out,) = merged(inputs=[*sums, logits, merge.problem], **merge.arguments)
        return out  # type: ignore[no-any-return]

    return run


@lru_cache(maxsize=64)
def _scale(value: float) -> mx.array:
    return mx.array(value, dtype=mx.float32)


@cache
def _no_sinks() -> mx.array:
    return mx.array([0.0])
