"""The small problem on which a variant must agree with the reference."""

from __future__ import annotations

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Configuration, Recurrence, Rows
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
        rows, state = _arguments(problem, nodes)
        tree = branching(nodes)
        accepted = mx.array(path_to(nodes - 1, tree), dtype=mx.int32)
        y, expected_y = (which.outputs(rows, state, tree) for which in (run, reference()))
        after, expected_after = (which.commit(rows, state, accepted) for which in (run, reference()))
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


def _arguments(problem: Configuration, nodes: int) -> tuple[Rows, mx.array]:
    """Rows and a state, the same in every process; q, k and v as parts of one array, as models have them."""
    width, value_width = problem.key_width, 2 * VALUE_COLUMNS
    shapes = [(KEY_HEADS, width), (KEY_HEADS, width), (HEADS, value_width)]
    queries, keys, values = (heads * wide for heads, wide in shapes)
    key = mx.random.key(0)

    def drawn(number: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.split(key, 6)[number])

    k_type, v_type, g_type, beta_type, q_type = problem.types
    mixed = drawn(0, 1, nodes, queries + keys + values).astype(v_type)
    parts = mx.split(mixed, [queries, queries + keys], axis=-1)
    q, k, v = (part.reshape(1, nodes, *shape) for part, shape in zip(parts, shapes, strict=True))
    if problem.normed:
        k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    g = drawn(1, 1, nodes, HEADS, *([width] if problem.by_channel else []))
    beta = drawn(2, 1, nodes, HEADS)
    parameters = None
    if problem.parameter_types is None:
        g, beta = mx.sigmoid(g + 2.0), mx.sigmoid(beta)
    else:
        rate_type, bias_type = problem.parameter_types
        parameters = (drawn(3, HEADS) - 1.0).astype(rate_type), drawn(4, HEADS).astype(bias_type)
    types = (q_type, k_type, v_type, g_type, beta_type)
    q, k, v, g, beta = (array.astype(dtype) for array, dtype in zip((q, k, v, g, beta), types, strict=True))
    return Rows(q, k, v, g, beta, parameters, problem.normed), drawn(5, 1, HEADS, value_width, width)


def _error(found: mx.array, expected: mx.array) -> float:
    """The largest difference as a share of the largest expected value; NaN if a value is NaN."""
    difference = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max()
    return (difference / mx.abs(expected.astype(mx.float32)).max()).item()  # type: ignore[return-value]
