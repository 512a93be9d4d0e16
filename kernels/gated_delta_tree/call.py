"""How the kernels are called; Metal and CUDA share inputs, template values and grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Recurrence
from kernels.gated_delta_tree.tree import Tree

Kernel = Callable[..., Any]

OUTPUTS_INPUTS = ("q", "k", "v", "g", "beta", "state", "parents")
COMMIT_INPUTS = ("k", "v", "g", "beta", "state", "path")
ADVANCE_INPUTS = ("q", "k", "v", "g", "beta", "state")
# Of commit and advance.
COLUMNS = 16
THREADS = 128


def recurrence(outputs: Kernel, commit: Kernel, advance: Kernel) -> Recurrence:
    """outputs: the kernel with inputs `OUTPUTS_INPUTS` and output y. commit: with `COMMIT_INPUTS` and output after.

    advance: with `ADVANCE_INPUTS` and outputs y and after.
    """

    def run_outputs(
        q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, tree: Tree
    ) -> mx.array:
        heads, value_width = v.shape[2:]
        key_width = k.shape[3]
        (y,) = outputs(
            inputs=[q, k, v, g, beta, state, tree.links],
            template=[("T", q.dtype), ("Dk", key_width), ("by_channel", g.ndim == 4)],
            grid=(value_width // VALUE_COLUMNS * key_width, heads, 1),
            threadgroup=(key_width, 1, 1),
            output_shapes=[v.shape],
            output_dtypes=[q.dtype],
        )
        return y  # type: ignore[no-any-return]

    def run_commit(k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, path: mx.array) -> mx.array:
        heads, value_width = v.shape[2:]
        (after,) = commit(
            inputs=[k, v, g, beta, state, path],
            template=[("Dk", k.shape[3]), ("by_channel", g.ndim == 4)],
            grid=(value_width // COLUMNS * THREADS, heads, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[state.shape],
            output_dtypes=[mx.float32],
        )
        return after  # type: ignore[no-any-return]

    def run_advance(
        q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        heads, value_width = v.shape[2:]
        y, after = advance(
            inputs=[q, k, v, g, beta, state],
            template=[("T", q.dtype), ("Dk", k.shape[3]), ("by_channel", g.ndim == 4)],
            grid=(value_width // COLUMNS * THREADS, heads, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[v.shape, state.shape],
            output_dtypes=[q.dtype, mx.float32],
        )
        return y, after

    return Recurrence(run_outputs, run_commit, run_advance)
