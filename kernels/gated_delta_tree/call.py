"""How the kernels are called; Metal and CUDA share inputs, template values and grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Recurrence, Rows
from kernels.gated_delta_tree.tree import Tree

Kernel = Callable[..., Any]

OUTPUTS_INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "parents")
COMMIT_INPUTS = ("k", "v", "g", "beta", "A_log", "dt_bias", "state", "path")
ADVANCE_INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state")
# Of commit and advance.
COLUMNS = 16
THREADS = 128


def recurrence(outputs: Kernel, commit: Kernel, advance: Kernel) -> Recurrence:
    """outputs: the kernel with inputs `OUTPUTS_INPUTS` and output y. commit: with `COMMIT_INPUTS` and output after.

    advance: with `ADVANCE_INPUTS` and outputs y and after. They read all rows in their strides, and the state row by
    row: a state in other strides is copied.
    """

    def run_outputs(rows: Rows, state: mx.array, tree: Tree) -> mx.array:
        heads, value_width = rows.v.shape[2:]
        key_width = rows.k.shape[3]
        (y,) = outputs(
            inputs=[rows.q, *_rest(rows), mx.contiguous(state), tree.links],
            template=[("T", rows.q.dtype), *_template(rows)],
            grid=(value_width // VALUE_COLUMNS * key_width, heads, 1),
            threadgroup=(key_width, 1, 1),
            output_shapes=[rows.v.shape],
            output_dtypes=[rows.q.dtype],
        )
        return y  # type: ignore[no-any-return]

    def run_commit(rows: Rows, state: mx.array, path: mx.array) -> mx.array:
        heads, value_width = rows.v.shape[2:]
        (after,) = commit(
            inputs=[*_rest(rows), mx.contiguous(state), path],
            template=_template(rows),
            grid=(value_width // COLUMNS * THREADS, heads, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[state.shape],
            output_dtypes=[mx.float32],
        )
        return after  # type: ignore[no-any-return]

    def run_advance(rows: Rows, state: mx.array) -> tuple[mx.array, mx.array]:
        heads, value_width = rows.v.shape[2:]
        y, after = advance(
            inputs=[rows.q, *_rest(rows), mx.contiguous(state)],
            template=[("T", rows.q.dtype), *_template(rows)],
            grid=(value_width // COLUMNS * THREADS, heads, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[rows.v.shape, state.shape],
            output_dtypes=[rows.q.dtype, mx.float32],
        )
        return y, after

    return Recurrence(run_outputs, run_commit, run_advance)


def _rest(rows: Rows) -> list[mx.array]:
    """All but the queries. Where there are no gate parameters, nothing is read of what stands for them."""
    return [rows.k, rows.v, rows.g, rows.beta, *(rows.gate_parameters or (rows.beta, rows.beta))]


def _template(rows: Rows) -> Sequence[tuple[str, Any]]:
    made = rows.gate_parameters is not None
    return [("Dk", rows.k.shape[3]), ("by_channel", rows.g.ndim == 4), ("makes_gates", made), ("normed", rows.normed)]
