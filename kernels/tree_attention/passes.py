"""A back end's kernels as one function: one launch where a span is the whole context, else a walk and a merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import mlx.core as mx

from kernels.tree_attention.plan import Extent, Plan, Shape, extent
from kernels.tree_attention.problem import TreeAttention

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
    """What calls of one division have in common: kernel, its numbers, and the keyword arguments of the launch."""

    kernel: Any
    problem: mx.array
    arguments: dict[str, Any]


def passes(factory: Callable[..., Any], texts: Texts, plan: Callable[[Extent, int], Plan]) -> TreeAttention:
    """The caches are read in their own strides, never copied. plan: the division for a head size.

    What is put out lies node by node, as a model wants it for its next product: its transposition costs nothing.

    The layers of a model ask for the same division of the same problem: what depends on it alone is made once.
    """

    @cache
    def made(
        name: str, text: str, inputs: Sequence[str], outputs: Sequence[str], defines: str, shared_bytes: int | None
    ) -> Any:
        header = defines + texts.header
        of_memory = {} if shared_bytes is None else {"shared_memory": shared_bytes}
        # MLX raises CUDA's limit of shared memory once per name: other sizes need other names.
        return factory(
            name=f"tree_attention_{name}{shared_bytes or ''}",
            input_names=list(inputs),
            output_names=list(outputs),
            source=text,
            header=header,
            ensure_row_contiguous=False,
            **of_memory,
        )

    def over_a_span(shape: Shape) -> Any:
        return made("span", texts.walk + texts.span, WALK_INPUTS, SPAN_OUTPUTS, shape.defines, shape.shared_bytes)

    def over_the_whole(shape: Shape) -> Any:
        inputs = (*WALK_INPUTS, "sinks")
        return made("whole", texts.walk + texts.whole, inputs, OUTPUTS, shape.defines, shape.shared_bytes)

    def merged(shape: Shape) -> Any:
        return made("merge", texts.merge, MERGE_INPUTS, OUTPUTS, shape.defines, shape.shared_bytes)

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
        division = plan(extent(nodes, heads, groups, columns, window, keep), size)
        walk, merge = division.walk, division.merge
        of_result: dict[str, Any] = {"output_shapes": [(1, nodes, heads, size)], "output_dtypes": [dtype]}
        of_sinks = [("SINKS", sinks is not None), ("S", sinks or mx.float32)]
        of_rows = [("T", dtype), ("D", size), *walk.template]
        of_walk: dict[str, Any] = {"grid": walk.grid, "threadgroup": (walk.group, 1, 1)}
        problem = mx.array(division.problem, dtype=mx.int32)
        if division.splits == 1:
            arguments = {"template": of_rows + of_sinks, **of_walk, **of_result}
            return Launch(over_the_whole(walk), problem, arguments), None
        sums = (division.rows, division.splits)
        of_sums = {"output_shapes": [(*sums, size), (*sums, 2)], "output_dtypes": [mx.float32, mx.float32]}
        of_merge = {
            "template": [("T", dtype), ("D", size), *merge.template, *of_sinks],
            "grid": merge.grid,
            "threadgroup": (merge.group, 1, 1),
            **of_result,
        }
        return (
            Launch(over_a_span(walk), problem, {"template": of_rows, **of_walk, **of_sums}),
            Launch(merged(merge), mx.array([division.splits, nodes, heads], dtype=mx.int32), of_merge),
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
            (out,) = walk.kernel(inputs=[*inputs, logits], **walk.arguments)
        else:
            sums = walk.kernel(inputs=inputs, **walk.arguments)
            (out,) = merge.kernel(inputs=[*sums, logits, merge.problem], **merge.arguments)
        return out.swapaxes(1, 2)  # type: ignore[no-any-return]

    return run


@lru_cache(maxsize=64)
def _scale(value: float) -> mx.array:
    return mx.array(value, dtype=mx.float32)


@cache
def _no_sinks() -> mx.array:
    return mx.array([0.0])
