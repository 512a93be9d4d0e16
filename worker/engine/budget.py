"""The draft-tree budget: how many nodes this machine should verify in one pass.

c(n) is the measured time of a pass over n nodes. Of a draft whose nodes have acceptance probabilities v, the nodes kept
maximise tokens per millisecond, (1 + sum of v) / (c(n) + draft cost). One node, plain decoding, is a legal answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.engine.calibration import isotonic
from worker.engine.tree import TokenTree

MEASURED_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
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


def measure_cost_curve(
    time_pass: Callable[[int], float], max_nodes: int, *, rounds: int = 5, time_limit_ms: float = 8000
) -> CostCurve:
    """Measure c(n) with `time_pass(nodes) -> milliseconds`.

    Round-robin, so that a drifting clock reaches every count alike; the first round warms up and does not count.
    Stops after `rounds` rounds, or after two when `time_limit_ms` is spent. A machine whose warm-up took a quarter of
    the limit is so slow that only powers of two are measured.
    """
    counts = sorted({*(n for n in MEASURED_NODES if n < max_nodes), max_nodes})
    if sum(time_pass(n) for n in counts) > time_limit_ms / 4:
        counts = [n for n in counts if n & (n - 1) == 0 or n == max_nodes]
    samples: dict[int, list[float]] = {n: [] for n in counts}
    spent = 0.0
    for number in range(rounds):
        if number >= 2 and spent > time_limit_ms:
            break
        for n in counts:
            samples[n].append(time_pass(n))
            spent += samples[n][-1]
    return CostCurve.fit(samples)


class Budget:
    """Chooses the nodes of a draft to verify.

    curve: of this machine and model. fixed_nodes: verify this many nodes whatever they cost (for tests and sweeps).
    """

    def __init__(self, curve: CostCurve | None, fixed_nodes: int | None = None) -> None:
        assert curve or fixed_nodes
        self.curve = curve
        self._costs = [curve.cost(nodes) for nodes in range(curve.max_nodes + 1)] if curve else []
        self.fixed_nodes = fixed_nodes

    @property
    def max_nodes(self) -> int:
        if self.fixed_nodes:
            return self.fixed_nodes
        assert self.curve
        return self.curve.max_nodes

    def choose(self, tree: TokenTree, draft_ms: float = 0.0) -> TokenTree:
        """The subtree worth verifying; the root alone when speculation does not pay."""
        if len(tree) == 1:
            return tree
        # Values never rise along a path and a parent precedes its children, so every prefix is a tree.
        order = sorted(range(len(tree)), key=lambda node: -tree.values[node])
        if self.fixed_nodes:
            return tree.pruned(order[: self.fixed_nodes])
        return tree.pruned(order[: self._best_size([tree.values[node] for node in order], draft_ms)])

    def _best_size(self, values: Sequence[float], draft_ms: float) -> int:
        best, best_rate = 1, MARGIN / (self._costs[1] + draft_ms)
        expected = 1.0
        for size in range(2, min(len(values), self.max_nodes) + 1):
            expected += values[size - 1]
            rate = expected / (self._costs[size] + draft_ms)
            if rate > best_rate:
                best, best_rate = size, rate
        return best
