"""The draft-tree budget: how many nodes this machine should verify in one pass.

c(n) is the measured time of a pass over n nodes. Of a draft whose nodes have acceptance probabilities v, the nodes kept
maximise tokens per millisecond, (1 + sum of v) / (c(n) + draft cost). One node, plain decoding, is a legal answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CostCurve:
        """From a file. Raises ValueError, KeyError or TypeError for what no measurement gives."""
        nodes = tuple(int(count) for count in record["nodes"])
        milliseconds = tuple(float(time) for time in record["milliseconds"])
        if len(nodes) != len(milliseconds) or nodes[:1] != (1,) or list(nodes) != sorted(set(nodes)):
            raise ValueError("the node counts are not those of a curve")
        if not all(isfinite(time) and time > 0 for time in milliseconds) or list(milliseconds) != sorted(milliseconds):
            raise ValueError("the milliseconds are not those of a curve")
        return cls(nodes, milliseconds)

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
        order = _by_value(tree)
        size, _ = self._best_prefix([tree.values[node] for node in order], draft_ms)
        return tree.pruned(order[:size])

    def choose_chain(self, tree: TokenTree, draft_ms: float = 0.0) -> TokenTree:
        """The path from the root worth verifying, where only chains can be."""
        sums = [tree.values[0]]
        for node in range(1, len(tree)):
            sums.append(sums[tree.parents[node]] + tree.values[node])
        ends = [node for node in range(len(tree)) if tree.depths[node] < self.max_nodes]
        best = max(ends, key=lambda node: self._worth(tree.depths[node] + 1, sums[node], draft_ms))
        return tree.pruned(tree.path(best))

    def promises(self, tree: TokenTree, ranks: Sequence[int], draft_ms: Sequence[float]) -> list[tuple[float, float]]:
        """Tokens and milliseconds of a round over the best of the nodes of rank 0, of those up to rank 1, and so on.

        ranks: of every node, never below that of its parent. draft_ms[rank]: what it takes to draft as far. For budgets
        that are not fixed.
        """
        order, found = _by_value(tree), []
        for highest, spent in enumerate(draft_ms):
            values = [tree.values[node] for node in order if ranks[node] <= highest]
            size, tokens = self._best_prefix(values, spent)
            found.append((tokens, self._costs[size] + spent))
        return found

    def plain_passes(self, nodes: int, draft_ms: float) -> float:
        """What a round costs, as a multiple of a plain pass. For a budget that is not fixed."""
        return (self._costs[nodes] + draft_ms) / self._costs[1]

    def _best_prefix(self, values: Sequence[float], draft_ms: float) -> tuple[int, float]:
        """How many of `values`, the largest first, are worth verifying, and their sum."""
        sums = list(itertools.accumulate(values[: self.max_nodes]))
        best = max(range(1, len(sums) + 1), key=lambda size: self._worth(size, sums[size - 1], draft_ms))
        return best, sums[best - 1]

    def _worth(self, nodes: int, expected: float, draft_ms: float) -> tuple[float, int]:
        """What to maximise: tokens per millisecond, and of equal ones the fewest nodes; or just as many nodes as fit.

        expected: tokens of a pass over `nodes` nodes.
        """
        if self.fixed_nodes:
            return expected, nodes
        return expected * (MARGIN if nodes == 1 else 1.0) / (self._costs[nodes] + draft_ms), -nodes


def _by_value(tree: TokenTree) -> list[int]:
    """Nodes, the most valuable first.

    Values never rise along a path and a parent precedes its children, so every prefix is a tree.
    """
    return sorted(range(len(tree)), key=lambda node: -tree.values[node])
