"""The small problem on which a variant must agree with the reference."""

from __future__ import annotations

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Configuration, Recurrence
from kernels.gated_delta_tree.reference import reference
from kernels.gated_delta_tree.tree import Tree

KEY_HEADS, HEADS = 4, 8
# MLX compiles a kernel anew for inputs of fewer than 8 elements: a tree and a path on either side of that.
CASES = (
    ((-1, 0, 0), (0, 2)),
    ((-1, 0, 1, 1, 2, 0, 5, 4, 7, 8, 3), (0, 1, 2, 4, 7, 8, 9, 10)),
)
# Of the largest value: some steps of float32, or one of the type that y is rounded to.
TOLERANCES = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1e-2}


def complaint(run: Recurrence, problem: Configuration) -> str | None:
    """What is wrong with the results of a variant; None if nothing is."""
    for parents, path in CASES:
        q, k, v, g, beta, state = _arguments(problem, len(parents))
        tree, accepted = Tree(parents), mx.array(path, dtype=mx.int32)
        y, expected_y = (which.outputs(q, k, v, g, beta, state, tree) for which in (run, reference()))
        after, expected_after = (which.commit(k, v, g, beta, state, accepted) for which in (run, reference()))
        for what, found, expected in (("outputs", y, expected_y), ("state", after, expected_after)):
            error = _error(found, expected)
            if not error <= TOLERANCES[expected.dtype]:
                return f"{what} of a tree of {len(parents)} nodes are off by {error:.1e} of their largest value"
    return None


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
