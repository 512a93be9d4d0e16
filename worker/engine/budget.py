"""The draft-tree budget: how many nodes this machine should verify in one pass.

c(n) is the measured time of a pass over n nodes. Of a draft whose nodes have acceptance probabilities v, the nodes kept
maximise tokens per millisecond, (1 + sum of v) / (c(n) + draft cost). One node, plain decoding, is a legal answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.engine.isotonic import isotonic
from worker.engine.tree import TokenTree

# A tree has to promise this much more than plain decoding, because its values are estimates.
MARGIN = 1.02


@dataclass(frozen=True)
class CostCurve:
    """Milliseconds of one verification pass at the measured node counts, non-decreasing."""

    nodes: tuple[int, ...]
    milliseconds: tuple[float, ...]

    @classmethod
    def fit(cls, samples: Mapping[int, Sequence[float]]) -> CostCurve:
        """The curve of the medians of `samples` (nodes -> milliseconds), made monotone."""
        nodes = tuple(sorted(samples))
        medians = [float(np.median(samples[n])) for n in nodes]
        return cls(nodes, tuple(isotonic(medians, [1.0] * len(nodes))))

    def cost(self, nodes: int) -> float:
        """c(nodes) in milliseconds, linear between measured counts."""
        return float(np.interp(nodes, self.nodes, self.milliseconds))

    @property
    def max_nodes(self) -> int:
        return self.nodes[-1]


class Budget:
    """Chooses the nodes of a draft to verify.

    curve: of this machine and model. fixed_nodes: verify this many nodes whatever they cost (for tests and sweeps).
    limit: nodes at most, if fewer than the curve has.
    """

    def __init__(self, curve: CostCurve | None, fixed_nodes: int | None = None, limit: int | None = None) -> None:
        assert curve or fixed_nodes
        self.curve = curve
        self.fixed_nodes = fixed_nodes
        if fixed_nodes:
            self.max_nodes = fixed_nodes
        elif curve:
            self.max_nodes = min(curve.max_nodes, limit or curve.max_nodes)
            self._costs = [curve.cost(nodes) for nodes in range(self.max_nodes + 1)]

    def choose(self, tree: TokenTree, draft_ms: float = 0.0) -> TokenTree:
        """The subtree worth verifying; the root alone when speculation does not pay. draft_ms: what the draft took."""
        if len(tree) == 1:
            return tree
        # Values never rise along a path and a parent precedes its children, so every prefix is a tree.
        order = sorted(range(len(tree)), key=lambda node: -tree.values[node])
        if self.fixed_nodes:
            return tree.pruned(order[: self.fixed_nodes])
        return tree.pruned(order[: self._best_size([tree.values[node] for node in order], draft_ms)])

    def plain_passes(self, nodes: int, draft_ms: float) -> float:
        """What a round costs, as a multiple of a plain pass. For a budget that is not fixed."""
        return (self._costs[nodes] + draft_ms) / self._costs[1]

    def _best_size(self, values: Sequence[float], draft_ms: float) -> int:
        best, best_rate = 1, MARGIN / (self._costs[1] + draft_ms)
        expected = 1.0
        for size in range(2, min(len(values), self.max_nodes) + 1):
            expected += values[size - 1]
            rate = expected / (self._costs[size] + draft_ms)
            if rate > best_rate:
                best, best_rate = size, rate
        return best
