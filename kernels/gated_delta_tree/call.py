"""How the kernels are called; Metal and CUDA share inputs, template values and grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from kernels.gated_delta_tree.problem import VALUE_COLUMNS, Recurrence, Rows
from kernels.gated_delta_tree.tree import Tree
from kernels.texts import text_beside

Kernel = Callable[..., Any]

OUTPUTS_INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "parents")
COMMIT_INPUTS = ("k", "v", "g", "beta", "A_log", "dt_bias", "state", "path")
ADVANCE_INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state")
# Of commit and advance.
COLUMNS = 16
THREADS = 128


def recurrence(factory: Callable[..., Any], ending: str, constant_below: int = 0) -> Recurrence:
    """The variant whose texts have that ending.

    The kernels read all rows in their strides, and the state row by row: a state in other strides is copied.
    constant_below: arrays of fewer elements have a type of their own in the texts.
    """
    header = text_beside(__file__, f"made.{ending}")

    def kernel(name: str, input_names: Sequence[str], output_names: Sequence[str]) -> Kernel:
        """A kernel that has the types of its inputs in its name: MLX knows a compiled one by its name alone."""
        source = text_beside(__file__, f"{name}.{ending}")

        @cache
        def typed(types: tuple[tuple[mx.Dtype, bool], ...]) -> Kernel:
            tags = (str(dtype).removeprefix("mlx.core.") + "c" * constant for dtype, constant in types)
            made: Kernel = factory(
                name=f"gated_delta_tree_{name}_{'_'.join(tags)}",
                input_names=list(input_names),
                output_names=list(output_names),
                source=source,
                header=header,
                ensure_row_contiguous=False,
            )
            return made

        def run(*, inputs: Sequence[mx.array], **call: Any) -> Any:
            types = tuple((array.dtype, array.size < constant_below) for array in inputs)
            return typed(types)(inputs=inputs, **call)

        return run

    outputs = kernel("outputs", OUTPUTS_INPUTS, ["y"])
    commit = kernel("commit", COMMIT_INPUTS, ["after"])
    advance = kernel("advance", ADVANCE_INPUTS, ["y", "after"])

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
