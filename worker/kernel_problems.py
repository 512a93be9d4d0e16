"""Problems of the size of a verification pass, on which kernels are timed and held to their references once more.

A problem has as many sets of weights, caches or states as a model has layers, more bytes together than a GPU's cache
holds. All calls are evaluated together, so that launches overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import mlx.core as mx

from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution
from kernels.gated_delta_tree import probe
from kernels.gated_delta_tree.problem import Recurrence
from kernels.qmm import variants
from kernels.qmm.problems import packed
from kernels.qmm.reference import Product
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.tree_attention import choice
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_convolution.choice import TOLERANCES, arguments
from kernels.tree_convolution.problem import TreeConvolution

Run = TypeVar("Run")

ROWS = 16
BYTES = 256 * 2**20
"""Of all weights or caches. The caches of an M3 Ultra hold 96 MB, those of an H200 50 MB."""
LAYERS = 48  # with a state, of the larger hybrid models
VOCABULARY = 151_936


@dataclass(frozen=True)
class Operation(Generic[Run]):
    """count: of calls. calls: the arrays that those of a variant give, not evaluated yet. exact: what they should give.

    tolerance: of the largest value of an array.
    """

    name: str
    count: int
    calls: Callable[[Run], list[mx.array]]
    exact: Callable[[], list[mx.array]]
    tolerance: float

    def complaint(self, found: Sequence[mx.array], exact: Sequence[mx.array]) -> str | None:
        """What is wrong with the results of the calls; None if nothing is."""
        for got, expected in zip(found, exact, strict=True):
            wide = expected.astype(mx.float32)
            error = (mx.abs(got.astype(mx.float32) - wide).max() / mx.abs(wide).max()).item()
            if not error <= self.tolerance:  # type: ignore[operator]
                return f"{self.name} at the size of a verification pass: off by {error:.2g} of the largest value"
        return None


def products(
    configuration: qmm.Configuration, depth: int = 4096, columns: int = 4096, total_bytes: int = BYTES
) -> list[Operation[Product]]:
    """Of ROWS rows."""
    dtype, group_size, bits = configuration
    one = columns * (depth * bits // 8 + 2 * dtype.size * (depth // group_size))
    count = max(2, total_bytes // one)
    x = mx.random.normal((ROWS, depth), key=mx.random.key(0)).astype(dtype)
    weights = [packed(columns, depth, *configuration, seed) for seed in range(count)]
    mx.eval(x, weights)

    def calls(run: Product) -> list[mx.array]:
        return [run(x, w, scales, biases, group_size, bits) for w, scales, biases in weights]

    return [Operation("product", count, calls, partial(calls, _wide_product), variants.TOLERANCES[dtype])]


def _wide_product(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
    wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
    return qmm.reference(wide_x, w, wide_scales, wide_biases, group_size, bits)


def attentions(
    configuration: choice.Configuration, columns: int = 4096, total_bytes: int = BYTES
) -> list[Operation[TreeAttention]]:
    """Of 16 query heads on 4 key heads, by a tree of ROWS nodes."""
    dtype, size = configuration
    heads, groups = 16, 4
    count = max(2, total_bytes // (2 * groups * columns * size * dtype.size))
    queries = mx.random.normal((1, heads, ROWS, size), key=mx.random.key(0)).astype(dtype)
    shape = (1, groups, columns, size)
    caches = [
        tuple(mx.random.normal(shape, key=key).astype(dtype) for key in mx.random.split(mx.random.key(seed)))
        for seed in range(count)
    ]
    tree = choice.two_branches(ROWS)
    mx.eval(queries, caches, tree)

    def calls(run: TreeAttention) -> list[mx.array]:
        return [run(queries, keys, values, tree, scale=size**-0.5) for keys, values in caches]

    return [Operation("attention", count, calls, partial(calls, _wide_attention), choice.TOLERANCES[dtype])]


def _wide_attention(
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
    wide_queries, wide_keys, wide_values = (array.astype(mx.float32) for array in (queries, keys, values))
    return tree_attention.reference(
        wide_queries, wide_keys, wide_values, ancestors, scale=scale, window=window, keep=keep, sinks=sinks
    )


def recurrences(
    configuration: gated_delta_tree.Configuration, key_heads: int = 16, heads: int = 32, layers: int = LAYERS
) -> list[Operation[Recurrence]]:
    """The outputs of a tree of ROWS nodes, the states after the path to the last one, and both after one token."""
    key_width, value_width = configuration.key_width, configuration.value_width
    shapes = [
        (1, ROWS, key_heads, key_width),
        (1, ROWS, heads, value_width),
        (1, ROWS, heads, *([key_width] if configuration.by_channel else [])),
        (1, ROWS, heads),
        (1, ROWS, key_heads, key_width),
        (heads,),
        (heads,),
    ]
    wide = [mx.random.normal(shape, key=mx.random.key(seed)) for seed, shape in enumerate(shapes)]
    if configuration.normed:
        wide[0] = wide[0] / mx.linalg.norm(wide[0], axis=-1, keepdims=True)
    if configuration.parameter_types is None:
        wide[2:4] = mx.sigmoid(wide[2] + 2), mx.sigmoid(wide[3])
    types = (*configuration.types, *(configuration.parameter_types or ()))
    k, v, g, beta, q, *parameters = (array.astype(dtype) for array, dtype in zip(wide, types, strict=False))
    gate_parameters = (parameters[0], parameters[1]) if parameters else None
    rows = gated_delta_tree.Rows(q, k, v, g, beta, gate_parameters, configuration.normed)
    first = rows._replace(**{name: getattr(rows, name)[:, :1] for name in ("q", "k", "v", "g", "beta")})
    states = [mx.random.normal((1, heads, value_width, key_width), key=mx.random.key(9 + n)) for n in range(layers)]
    tree = probe.branching(ROWS)
    path = mx.array(probe.path_to(ROWS - 1, tree), dtype=mx.int32)
    mx.eval(rows, first, states, tree.links, path)

    def outputs(run: Recurrence) -> list[mx.array]:
        return [run.outputs(rows, state, tree) for state in states]

    def commits(run: Recurrence) -> list[mx.array]:
        return [run.commit(rows, state, path) for state in states]

    def advances(run: Recurrence) -> list[mx.array]:
        return [array for state in states for array in run.advance(first, state)]

    reference = gated_delta_tree.reference()
    return [
        Operation("outputs", layers, outputs, partial(outputs, reference), probe.TOLERANCES[q.dtype]),
        Operation("commit", layers, commits, partial(commits, reference), probe.TOLERANCES[mx.float32]),
        Operation("advance", layers, advances, partial(advances, reference), probe.TOLERANCES[q.dtype]),
    ]


def convolutions(
    configuration: tree_convolution.Configuration, channels: int = 10_240, layers: int = LAYERS
) -> list[Operation[TreeConvolution]]:
    """Over a tree of ROWS nodes."""
    x, weight, windows, _ = arguments(configuration, ROWS, channels)
    rows = [x + layer for layer in range(layers)]
    mx.eval(rows, weight, windows)

    def calls(run: TreeConvolution) -> list[mx.array]:
        return [run(one, weight, windows) for one in rows]

    exact = partial(calls, tree_convolution.reference)
    return [Operation("convolution", layers, calls, exact, TOLERANCES[configuration.dtype])]


def draws(dtype: mx.Dtype, vocabulary: int = VOCABULARY, count: int = 8) -> list[Operation[Sample]]:
    """Of ROWS rows each. Tokens and which rows the host has to draw: they are the reference's own, every one."""
    settings = [sample.Draw(temperature=0.7, top_p=0.9, seed=1, position=row) for row in range(ROWS)]
    logits = [
        (mx.random.normal((ROWS, vocabulary), key=mx.random.key(seed)) * 3).astype(dtype) for seed in range(count)
    ]
    mx.eval(logits)

    def calls(run: Sample) -> list[mx.array]:
        drawn = [run(rows, settings, 0) for rows in logits]
        return [mx.concatenate([one.tokens + 1, one.needs_host.astype(mx.int32)]) for one in drawn]

    return [Operation("draw", count, calls, partial(calls, sample.reference_sample), 0.0)]
