"""A call of the gated delta rule by kernels: a launch for the outputs of a tree, another for the state after a path.

A token of plain decoding takes a single launch for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import mlx.core as mx

from kernels.gated_delta_tree.problem import NODES_AT_MOST, ROW_TYPES, Recurrence, Rows, configuration
from kernels.gated_delta_tree.tree import Tree
from worker.engine.kernel_set import KernelSet
from worker.engine.verify.accepted import index_of


@dataclass(frozen=True)
class GatedDeltaCall:
    """The kernels and their arguments."""

    run: Recurrence
    rows: Rows
    state: mx.array

    def outputs(self, parents: Sequence[int]) -> mx.array:
        """[1, N, Hv, Dv] of the N nodes of a tree, by their parents."""
        return self.run.outputs(self.rows, self.state, _tree(tuple(parents)))

    def after(self, path: Sequence[int]) -> mx.array:
        """The state [1, Hv, Dv, Dk] after the nodes of `path`."""
        return self.run.commit(self.rows, self.state, index_of(path))

    def advanced(self) -> tuple[mx.array, mx.array]:
        """Outputs and state of a chain."""
        return self.run.advance(self.rows, self.state)


def kernel_call(rows: Rows, state: mx.array | None, kernels: KernelSet) -> GatedDeltaCall | None:
    """The call by what `kernels` has for these widths and types; None where that is nothing.

    A state that begins at an odd address would not do either. There is none: a state is an array of its own, or the
    slice of one sequence of such an array.
    """
    k, v, arrays = rows.k, rows.v, (*rows[:5], *(rows.gate_parameters or ()))
    if k.shape[0] != 1 or k.shape[1] > NODES_AT_MOST or any(array.dtype not in ROW_TYPES for array in arrays):
        return None
    if state is None:
        state = mx.zeros((1, *v.shape[2:], k.shape[3]))
    if state.dtype != mx.float32:
        return None
    run = kernels.recurrence(configuration(rows))
    return None if run is None else GatedDeltaCall(run, rows, state)


@lru_cache(maxsize=4)  # all layers of a pass have the same one
def _tree(parents: tuple[int, ...]) -> Tree:
    return Tree(parents)
