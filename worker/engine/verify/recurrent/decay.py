"""Products of gates down the paths of a tree: what linear recurrences need instead of running products.

A gate is a factor in [0, 1] on the state, one per token. What node j wrote reaches node i below it multiplied by the
gates of the nodes after j down to i; the state of the prefix reaches i multiplied by the gates of all nodes down to i.
Logarithms are summed over exactly those nodes. The difference of two running sums would lose the digits of a short
stretch behind a long one: after ten gates of 1e-6, the product of two gates near 1 would be off by 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from worker.engine.verify.tree_pass import TreePass

# A gate may round to 0, which has no logarithm; less than this share of a state is beyond the resolution of a float.
SMALLEST_GATE = 1e-30
# Takes a sum of logarithms to nothing. Finite, so that no kernel meets an infinity.
NOTHING = -1e30

NOTE = "descents"


@dataclass(frozen=True)
class Pairs:
    """The E pairs of a node and a node on its path, itself included.

    lower, upper: [E] the two nodes. sums: [E, N] ones for the nodes after `upper` down to `lower`, else zeros.
    index: [N, N] the number of the pair (lower, upper), E where there is none.
    """

    lower: mx.array
    upper: mx.array
    sums: mx.array
    index: mx.array


class Descents:
    """Which gates lie between the nodes of a tree, as arrays that all layers of a pass share."""

    def __init__(self, ancestors: npt.NDArray[np.bool_]) -> None:
        """ancestors: [N, N], entry (i, j) says that node j is node i or above it."""
        self._ancestors = ancestors
        self._above = ancestors & ~np.eye(len(ancestors), dtype=np.bool_)

    @cached_property
    def above(self) -> mx.array:
        """[N, N] ones where node j is strictly above node i, else zeros."""
        return _floats(self._above)

    @cached_property
    def paths(self) -> mx.array:
        """[N, N] ones where node j is node i or above it, else zeros."""
        return _floats(self._ancestors)

    @cached_property
    def sums(self) -> mx.array:
        """[N, N * (N + 1)] ones in column i * (N + 1) + j for the nodes after j down to i; j = N: after the prefix."""
        return _floats(self._between.reshape(len(self._ancestors), -1))

    @cached_property
    def barrier(self) -> mx.array:
        """[N * (N + 1)] 0 where the column of `sums` belongs to nodes of one path, else `NOTHING`."""
        exists = np.pad(self._ancestors, ((0, 0), (0, 1)), constant_values=True)
        return mx.where(mx.array(exists.reshape(-1)), 0.0, NOTHING)

    @cached_property
    def pairs(self) -> Pairs:
        lower, upper = np.nonzero(self._ancestors)
        index = np.full(self._ancestors.shape, len(lower), dtype=np.int32)
        index[lower, upper] = np.arange(len(lower))
        sums = _floats(self._between[:, lower, upper].T)
        return Pairs(mx.array(lower.astype(np.int32)), mx.array(upper.astype(np.int32)), sums, mx.array(index))

    @cached_property
    def _between(self) -> npt.NDArray[np.bool_]:
        """[N, N, N + 1]: entry (l, i, j) says that node l comes after node j, or after the prefix, on the path to i."""
        after = np.pad(self._above, ((0, 0), (0, 1)), constant_values=True)
        return self._ancestors.T[:, :, None] & after[:, None, :]


def descents(current: TreePass) -> Descents:
    """Those of the tree of a pass, made once."""
    if NOTE not in current.notes:
        current.notes[NOTE] = Descents(current.tree.ancestors())
    found: Descents = current.notes[NOTE]
    return found


def log_gates(gates: mx.array) -> mx.array:
    """Finite logarithms of gates, float32."""
    return mx.log(mx.maximum(gates.astype(mx.float32), SMALLEST_GATE))


def decays(logs: mx.array, current: TreePass) -> tuple[mx.array, mx.array]:
    """How much is left of what another node wrote, and of the prefix.

    logs: [..., N] logarithms of the gates, finite. Returns [..., N, N], zero where node j is not on the path of node i,
    and [..., N, 1].
    """
    tree = descents(current)
    products = mx.exp(mx.addmm(tree.barrier, logs, tree.sums)).reshape(*logs.shape, current.nodes + 1)
    return products[..., :-1], products[..., -1:]


def _floats(marks: npt.NDArray[np.bool_]) -> mx.array:
    return mx.array(marks.astype(np.float32))
