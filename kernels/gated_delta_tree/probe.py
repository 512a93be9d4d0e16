"""The small problem on which a variant must agree with the reference."""

from __future__ import annotations

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Configuration, Recurrence
from kernels.gated_delta_tree.reference import reference
from kernels.gated_delta_tree.tree import Tree

KEY_HEADS, HEADS = 4, 8
# MLX compiles a kernel anew for inputs of fewer than 8 elements, and a kernel takes nodes in chunks of 8, up to 32.
NODES = (3, 7, 8, 9, 16, 17, 24, 25, 31, 32)
TOKENS = (1, 4)  # of a chain
# Of the largest value: some steps of float32, or one of the type that y is rounded to.
TOLERANCES = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1e-2}


def complaint(run: Recurrence, problem: Configuration) -> str | None:
    """What is wrong with the results of a variant; None if nothing is."""
    for nodes in NODES:
        q, k, v, g, beta, state = _arguments(problem, nodes)
        tree = branching(nodes)
        accepted = mx.array(path_to(nodes - 1, tree), dtype=mx.int32)
        y, expected_y = (which.outputs(q, k, v, g, beta, state, tree) for which in (run, reference()))
        after, expected_after = (which.commit(k, v, g, beta, state, accepted) for which in (run, reference()))
        for what, found, expected in (("outputs", y, expected_y), ("state", after, expected_after)):
            error = _error(found, expected)
            if not error <= TOLERANCES[expected.dtype]:
                return f"{what} of a tree of {nodes} nodes are off by {error:.1e} of their largest value"
    for tokens in TOKENS:
        arguments = _arguments(problem, tokens)
        pairs = zip(run.advance(*arguments), reference().advance(*arguments), strict=True)
        for what, (found, expected) in zip(("outputs", "state"), pairs, strict=True):
            error = _error(found, expected)
            if not error <= TOLERANCES[expected.dtype]:
                return f"{what} of a chain of {tokens} tokens are off by {error:.1e} of their largest value"
    return None


def branching(nodes: int) -> Tree:
    """Deep, with a branch at every fifth node: the last node has most others above it."""
    return Tree([node - (3 if node % 5 == 4 else 1) for node in range(nodes)])


def path_to(node: int, tree: Tree) -> list[int]:
    """The nodes from the first one down to `node`."""
    parent = tree.parents[node]
    return [*(path_to(parent, tree) if parent >= 0 else []), node]


def _arguments(problem: Configuration, nodes: int) -> tuple[mx.array, ...]:
    """q, k, v, g, beta and state, the same in every process."""
    key = mx.random.key(0)

    def rows(number: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.split(key, 6)[number])

    width = problem.key_width
    q = rows(0, 1, nodes, KEY_HEADS, width)
    k = rows(1, 1, nodes, KEY_HEADS, width)
    v = rows(2, 1, nodes, HEADS, 2 * VALUE_COLUMNS)
    g = mx.sigmoid(rows(3, 1, nodes, HEADS, *([width] if problem.by_channel else [])) + 2.0)
    beta = mx.sigmoid(rows(4, 1, nodes, HEADS))
    state = rows(5, 1, HEADS, 2 * VALUE_COLUMNS, width)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    types = problem.types
    return q.astype(types[4]), k.astype(types[0]), v.astype(types[1]), g.astype(types[2]), beta.astype(types[3]), state


def _error(found: mx.array, expected: mx.array) -> float:
    """The largest difference as a share of the largest expected value; NaN if a value is NaN."""
    difference = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max()
    return (difference / mx.abs(expected.astype(mx.float32)).max()).item()  # type: ignore[return-value]
