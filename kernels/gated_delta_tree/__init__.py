"""The gated delta rule over a draft tree: outputs of all nodes at once, and the state after the accepted path.

Formulas: `reference`. Algorithms, bytes and flops: `outputs.metal` and `commit.metal`.
"""

from __future__ import annotations

import mlx.core as mx

from kernels.gated_delta_tree.choice import KERNEL, chosen
from kernels.gated_delta_tree.problem import NODES_AT_MOST, Configuration, Rows, check_rows, configuration
from kernels.gated_delta_tree.reference import reference
from kernels.gated_delta_tree.tree import Tree

__all__ = [
    "KERNEL",
    "Configuration",
    "Rows",
    "Tree",
    "chosen",
    "configuration",
    "reference",
    "state_after",
    "tree_outputs",
]


def tree_outputs(rows: Rows, state: mx.array, tree: Tree) -> mx.array:
    """Outputs of the N nodes, [1, N, Hv, Dv] in the type of q, each from the state along its own path.

    Rows are bfloat16, float16 or float32. state: [1, Hv, Dv, Dk] in float32, before the tree; not changed. Computed in
    float32. Other widths than the kernels have, and trees of more than 32 nodes, go through the reference.
    ValueError if shapes or types do not belong together. A kernel needs the state to begin at a multiple of 16 bytes,
    as every array of its own does, and every slice along its first axes.
    """
    check_rows(rows, state)
    if len(tree) != rows.k.shape[1]:
        raise ValueError(f"the tree has {len(tree)} nodes and k {rows.k.shape[1]} rows")
    run = chosen(configuration(rows)).run if len(tree) <= NODES_AT_MOST else reference()
    return run.outputs(rows, state, tree)


def state_after(rows: Rows, state: mx.array, path: mx.array) -> mx.array:
    """The state [1, Hv, Dv, Dk] after the tokens of `path`; other arguments as in `tree_outputs`.

    path: [T] int32, rows in the order of the tokens. They are not checked to be rows that exist.
    """
    check_rows(rows, state)
    if path.ndim != 1 or path.dtype != mx.int32:
        raise ValueError(f"path is {path.dtype} {path.shape}; int32 [T] is needed")
    return chosen(configuration(rows)).run.commit(rows, state, path)
