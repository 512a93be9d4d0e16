"""What attention over the nodes of a tree costs: ours beside mx.fast.scaled_dot_product_attention, in one run.

MLX's own runs under the boolean mask that the engine gives for a tree, and as "causal", which is what a chain takes
(one node needs no mask). Works take turns. Each time is that of one call among many over different caches, evaluated
together, so that launches overlap and no cache memory of the device holds them: once with every call independent of
the others, once with each one's queries waiting for the result before it, as in a model. GB/s: the keys and values,
read once, over the time of an independent call of ours. The errors are the largest, against float64, in roundings of
the output's type. Exits with 1 when ours is wrong.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from bench.report import save, table
from bench.turns import median_seconds
from kernels import tree_attention
from kernels.tree_attention.problem import TreeAttention
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import random_tree
from worker.engine.verify.tree_pass import TreePass

HEADS = ((24, 4, 256), (32, 8, 128))  # query heads, key heads, size: Qwen3.8-27B's, and many others'
CONTEXTS = (64, 2048, 8192, 32768)
NODES = (1, 4, 8, 16, 32)
SMALL: dict[str, Any] = {"heads": ((4, 2, 64),), "contexts": (40, 300), "nodes": (1, 5), "bytes": 1, "turns": 1}
MAX_DEPTH = 16
STEP = 256  # a cache's buffer grows by so many rows
FEWEST_CALLS, MOST_CALLS = 16, 400
ROUNDOFF = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
MOST_ROUNDINGS = 2.0
MOST_ROUNDINGS_OF_MLX = 20.0  # it may round scores and weights to 16 bits
HEADINGS = [
    "heads",
    "context",
    "nodes",
    "us",
    "us in turn",
    "mask us",
    "mask us in turn",
    "causal us",
    "causal us in turn",
    "GB/s",
    "error",
    "mask error",
]
Attend = Callable[[mx.array, mx.array, mx.array], mx.array]
"""attend(queries [1, Hq, N, D], keys [1, Hkv, T, D], values) -> [1, Hq, N, D]"""
Rows = tuple[mx.array, mx.array]


@dataclass(frozen=True)
class Heads:
    query: int
    key: int
    size: int

    @property
    def scale(self) -> float:
        return float(self.size**-0.5)

    def __str__(self) -> str:
        return f"{self.query}/{self.key} x {self.size}"

    def bytes(self, columns: int) -> int:
        """Of the keys and values of one cache in 16 bits."""
        return 4 * self.key * columns * self.size


class Caches:
    """Buffers with random rows: `context` of the text, and behind them room for those of a tree.

    The rows of a tree, and the queries, lean towards one direction, so that each node of a tree that a query sees gets
    about an eighth of the weight of the whole context: what a wrong mask lets in shows in the error.
    """

    def __init__(self, heads: Heads, context: int, dtype: mx.Dtype, number: int) -> None:
        self.heads, self.context, self.dtype = heads, context, dtype
        self._lean = (math.log(max(context / 8, 1)) / heads.size**0.5) ** 0.5
        length = -(-(context + max(NODES)) // STEP) * STEP
        in_tree = (mx.arange(length) >= context)[:, None]

        def rows(lean: float) -> mx.array:
            made = mx.random.normal((1, heads.key, length, heads.size), dtype=dtype)
            return made + mx.where(in_tree, lean, 0.0).astype(dtype)

        self._buffers = [(rows(self._lean), rows(0.0)) for _ in range(number)]
        mx.eval(self._buffers)

    def queries(self, nodes: int) -> mx.array:
        shape = (1, self.heads.query, nodes, self.heads.size)
        return mx.random.normal(shape, dtype=self.dtype) + mx.array(self._lean, dtype=self.dtype)

    def rows(self, nodes: int) -> list[Rows]:
        """Keys and values of context and tree, in place, as a cache hands them out."""
        end = self.context + nodes
        views = [(keys[..., :end, :], values[..., :end, :]) for keys, values in self._buffers]
        mx.eval(views)
        return views


def ancestor_bits(tree: TokenTree) -> mx.array:
    """[N] uint32; bit j of entry i is set when node j is i or above it."""
    places = np.arange(len(tree), dtype=np.uint32)
    return mx.array((tree.ancestors().astype(np.uint32) << places).sum(axis=1, dtype=np.uint32))


def errors(
    results: Sequence[mx.array], queries: mx.array, rows: Rows, visible: npt.NDArray[np.bool_], heads: Heads
) -> list[float]:
    """The largest of each over the first and the last key head, in roundings of a value as large as it and its rms.

    visible: [N, T] node i sees column c.
    """
    nodes, shared = queries.shape[2], heads.query // heads.key
    worst = [0.0] * len(results)
    for head in {0, heads.key - 1}:
        own = slice(head * shared, (head + 1) * shared)
        q, k, v = (_float64(array) for array in (queries[0, own], rows[0][0, head], rows[1][0, head]))
        scores = np.where(np.tile(visible, (shared, 1)), heads.scale * (q.reshape(-1, heads.size) @ k.T), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        exact = (weights @ v / weights.sum(axis=1, keepdims=True)).reshape(shared, nodes, heads.size)
        size = np.abs(exact) + np.sqrt((exact**2).mean())
        for index, result in enumerate(results):
            off = np.abs(_float64(result[0, own]) - exact) / (ROUNDOFF[result.dtype] * size)
            worst[index] = max(worst[index], float(off.max()))
    return worst


def _float64(array: mx.array) -> npt.NDArray[np.float64]:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def independent(attend: Attend, queries: mx.array, over: list[Rows]) -> Callable[[], None]:
    return lambda: mx.eval([attend(queries, *rows) for rows in over])


def in_turn(attend: Attend, queries: mx.array, over: list[Rows]) -> Callable[[], None]:
    """No call can begin before the one before it has ended (an addition stands between)."""

    def chain() -> None:
        at = queries
        for rows in over:
            at = queries + 1e-6 * attend(at, *rows)
        mx.eval(at)

    return chain


def measured(attend: TreeAttention, caches: Caches, nodes: int, turns: int) -> list[Any]:
    """One line of the table."""
    heads = caches.heads
    tree = random_tree(0, nodes, min(MAX_DEPTH, max(1, nodes // 2)), 1000, random.Random(nodes))
    bits, mask = ancestor_bits(tree), TreePass(tree).mask(caches.context)
    queries, over = caches.queries(nodes), caches.rows(nodes)
    mx.eval(bits, mask, queries)

    def ours(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        return attend(queries, keys, values, bits, scale=heads.scale)

    def stock(mask: mx.array | str | None) -> Attend:
        return lambda queries, keys, values: mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=heads.scale, mask=mask
        )

    masked = stock(mask if nodes > 1 else None)
    calls = [ours, masked, *([stock("causal")] if nodes > 1 else [])]
    works = [how(call, queries, over) for call in calls for how in (independent, in_turn)]
    seconds = [spent / len(over) for spent in median_seconds(works, turns)]
    results = [call(queries, *over[0]) for call in (ours, masked)]
    off = errors(results, queries, over[0], np.array(mask), heads)
    times: list[Any] = [spent * 1e6 for spent in seconds]
    times += ["-"] * (6 - len(times))
    rate = heads.bytes(caches.context + nodes) / seconds[0] / 1e9
    return [str(heads), caches.context, nodes, *times, rate, *off]


def compared(options: argparse.Namespace, dtype: mx.Dtype, attend: TreeAttention) -> list[list[Any]]:
    """The table's rows. attend: ours."""
    rows = []
    for heads in (Heads(*each) for each in options.heads):
        for context in options.contexts:
            number = min(MOST_CALLS, max(FEWEST_CALLS, -(-options.bytes // heads.bytes(context))))
            caches = Caches(heads, context, dtype, number)
            for nodes in options.nodes:
                rows.append(measured(attend, caches, nodes, options.turns))
                print(table(HEADINGS, rows[-1:]).splitlines()[-1], flush=True)
            del caches
            mx.clear_cache()
    return rows


def right(rows: list[list[Any]], most_roundings: float) -> bool:
    """Whether rounding explains how far ours is off."""
    return all(row[HEADINGS.index("error")] <= most_roundings for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--heads", type=_heads, nargs="+", default=HEADS, help="QUERYxKEYxSIZE, such as 24x4x256")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--bytes", type=int, default=2**28, help="of the caches of an evaluation, at least; in calls")
    parser.add_argument("--turns", type=int, default=5, help="evaluations, of which the median counts")
    parser.add_argument("--small", action="store_true", help="a few small caches, for a machine without a GPU")
    parser.add_argument("--save-as", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    if options.small:
        vars(options).update(SMALL)
    mx.random.seed(0)
    dtype: mx.Dtype = getattr(mx, options.dtype)
    chosen = {size: tree_attention.chosen(dtype, size) for _, _, size in options.heads}
    for size, choice in chosen.items():
        print(f"size {size}: ours is {choice.name}; refused: {choice.refused}", flush=True)
    rows = compared(options, dtype, lambda *arrays, **rest: chosen[arrays[0].shape[3]].run(*arrays, **rest))
    print(table(HEADINGS, rows), flush=True)
    names = {str(size): choice.name for size, choice in chosen.items()}
    if options.save_as:
        content = {"ours": names, "options": {"dtype": options.dtype, "bytes": options.bytes, "turns": options.turns}}
        print(save(options.save_as, {**content, "headings": HEADINGS, "rows": rows}))
    sys.exit(not right(rows, MOST_ROUNDINGS_OF_MLX if "reference" in names.values() else MOST_ROUNDINGS))


def _heads(text: str) -> tuple[int, int, int]:
    query, key, size = text.split("x")
    return int(query), int(key), int(size)


if __name__ == "__main__":
    main()
