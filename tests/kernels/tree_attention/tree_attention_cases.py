"""Problems of tree attention, and what they come to in float64, node by node and column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.tree_attention.problem import TreeAttention

Floats = NDArray[np.float64]

SLACK = 19  # rows of the buffers behind the last column; they hold NaN


@dataclass(frozen=True)
class Case:
    """committed: columns before the tree. keep and window as in `tree_attention`."""

    heads: int
    groups: int
    nodes: int
    committed: int
    size: int
    dtype: mx.Dtype = mx.float32
    window: int | None = None
    keep: int = 0
    sinks: bool = False

    def __str__(self) -> str:
        words = [f"{self.heads}over{self.groups}heads", f"{self.nodes}nodes", f"{self.committed}committed"]
        words += [f"size{self.size}", str(self.dtype).removeprefix("mlx.core.")]
        words += [f"window{self.window}keep{self.keep}"] if self.window else []
        return "-".join([*words, "sinks"] if self.sinks else words)

    @property
    def columns(self) -> int:
        return self.committed + self.nodes

    @cached_property
    def parents(self) -> list[int]:
        random = np.random.default_rng(self.nodes)
        return [-1, *(int(random.integers(max(0, node - 4), node)) for node in range(1, self.nodes))]

    def path(self, node: int) -> list[int]:
        """The node and those above it."""
        return [node, *(self.path(self.parents[node]) if node else [])]

    @property
    def ancestors(self) -> mx.array:
        bits = [sum(1 << above for above in self.path(node)) for node in range(self.nodes)]
        return mx.array(bits, dtype=mx.uint32)

    @cached_property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        """Queries as projections leave them, [1, N, Hq, D] seen as [1, Hq, N, D]; views of longer caches."""
        random = np.random.default_rng(self.committed + self.size)
        queries = random.standard_normal((1, self.nodes, self.heads, self.size))
        buffers = np.full((2, 1, self.groups, self.columns + SLACK, self.size), np.nan)
        buffers[..., : self.columns, :] = random.standard_normal((2, 1, self.groups, self.columns, self.size))
        keys, values = (mx.array(buffer.astype(np.float32)).astype(self.dtype) for buffer in buffers)
        of_heads = mx.array(queries.astype(np.float32)).astype(self.dtype).swapaxes(1, 2)
        return of_heads, keys[..., : self.columns, :], values[..., : self.columns, :]

    @cached_property
    def sink_logits(self) -> mx.array | None:
        return mx.array(np.linspace(-2, 3, self.heads).astype(np.float32)) if self.sinks else None

    def run(self, attention: TreeAttention, arrays: Sequence[mx.array] | None = None) -> mx.array:
        queries, keys, values = arrays or self.arrays
        options: dict[str, Any] = {"window": self.window, "keep": self.keep, "sinks": self.sink_logits}
        return attention(queries, keys, values, self.ancestors, scale=self.size**-0.5, **options)

    def sees(self, node: int, column: int) -> bool:
        if column >= self.committed:
            branch = column - self.committed
            if branch not in self.path(node):
                return False
            position = self.committed + len(self.path(branch)) - 1
        else:
            position = column
        own = self.committed + len(self.path(node)) - 1
        return self.window is None or position < self.keep or position > own - (self.window - self.keep)

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        return np.array([[self.sees(node, column) for column in range(self.columns)] for node in range(self.nodes)])

    @cached_property
    def expected(self) -> Floats:
        return self._over_the_heads(lambda weights, values: weights @ values)

    @cached_property
    def spread(self) -> Floats:
        """How far the result is off, as a standard deviation, when each weight is off by as much as itself."""
        return np.sqrt(self._over_the_heads(lambda weights, values: weights**2 @ values**2))

    def _over_the_heads(self, combined: Callable[[Floats, Floats], Floats]) -> Floats:
        """combined(weights [N, T], values [T, D]) of each query head."""
        queries, keys, values = (as_float64(array)[0] for array in self.arrays)
        result = np.empty((1, self.heads, self.nodes, self.size))
        for head in range(self.heads):
            group = head // (self.heads // self.groups)
            scores = queries[head] @ keys[group].T * self.size**-0.5
            weights = np.where(self.visible, np.exp(scores), 0.0)
            sink = np.exp(as_float64(self.sink_logits)[head]) if self.sink_logits is not None else 0.0
            result[0, head] = combined(weights / (weights.sum(axis=1, keepdims=True) + sink), values[group])
        return result


def as_float64(array: mx.array) -> Floats:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def assert_close(found: mx.array, case: Case, weights_are_rounded: bool = False) -> None:
    """Within one rounding to the dtype of what float64 gives, plus what float32 sums lose.

    weights_are_rounded: to the dtype too, before they meet the values. That is off by an independent half of a rounding
    at most for each, 0.58 of that as a standard deviation, of which five are allowed.
    """
    rounding = {mx.float32: 2.0**-22, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[case.dtype]
    assert found.dtype == case.dtype
    allowed = 1e-5 + rounding * np.abs(case.expected)
    if weights_are_rounded:
        allowed += 5 * 0.58 * rounding / 2 * case.spread
    off = np.abs(as_float64(found) - case.expected)
    assert (off <= allowed).all(), f"off by up to {(off / allowed).max():.3g} of what is allowed"
