"""Calibration: from a drafter's confidence to the probability that its guess is accepted.

Outcomes are counted per depth group and confidence bin, made monotone in confidence (isotonic regression), and learned
while decoding. Every pass teaches, also one that verified no draft: the tokens it emitted say which guesses were right.
"""

from collections.abc import Sequence

from worker.engine.tree import TokenTree

BIN_EDGES = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
DEPTH_EDGES = (2, 4, 8)
PRIOR_WEIGHT = 4.0
# What was never tried bends to what was, when both are made monotone.
UNSEEN_WEIGHT = 0.1
# A request's own outcomes outweigh the worker's history after about this many of them.
HISTORY_WEIGHT = 6.0
HISTORY_LIMIT = 400.0


class _Counts:
    """Tried and accepted guesses per depth group and confidence bin."""

    def __init__(self) -> None:
        groups, bins = len(DEPTH_EDGES) + 1, len(BIN_EDGES) + 1
        self.tried = [[0.0] * bins for _ in range(groups)]
        self.accepted = [[0.0] * bins for _ in range(groups)]

    def add(self, group: int, interval: int, accepted: bool) -> None:
        self.tried[group][interval] += 1
        self.accepted[group][interval] += accepted


class Calibration:
    """Acceptance probabilities of one drafter against one target."""

    def __init__(self) -> None:
        self._history = _Counts()
        self._request = _Counts()
        self._tables: list[list[float] | None] = [None] * (len(DEPTH_EDGES) + 1)

    def start_request(self) -> None:
        """Fold the last request's outcomes into the history."""
        for group, row in enumerate(self._request.tried):
            for interval, tried in enumerate(row):
                self._fold(group, interval, tried, self._request.accepted[group][interval])
        self._request = _Counts()
        self._tables = [None] * len(self._tables)

    def appraise(self, tree: TokenTree) -> None:
        """Set every node's value: the product of calibrated probabilities on its path."""
        for node in range(1, len(tree)):
            group, interval = _group(tree.depths[node]), _interval(tree.confidences[node])
            tree.values[node] = tree.values[tree.parents[node]] * self._table(group)[interval]

    def learn(self, tree: TokenTree, emitted: Sequence[int]) -> None:
        """Count the outcomes of a whole draft, given the tokens that followed its root."""
        node: int | None = 0
        for token in emitted:
            assert node is not None
            right = tree.child(node, token)
            for child in tree.children(node):
                group = _group(tree.depths[child])
                self._request.add(group, _interval(tree.confidences[child]), child == right)
                self._tables[group] = None
            node = right
            if node is None:
                return

    def _table(self, group: int) -> list[float]:
        table = self._tables[group]
        if table is None:
            table = self._tables[group] = self._estimate(group)
        return table

    def _estimate(self, group: int) -> list[float]:
        rates, weights = [], []
        for interval, prior in enumerate(_BIN_CENTRES):
            tried, accepted = self._history.tried[group][interval], self._history.accepted[group][interval]
            history = (accepted + PRIOR_WEIGHT * prior) / (tried + PRIOR_WEIGHT)
            now, hits = self._request.tried[group][interval], self._request.accepted[group][interval]
            rates.append((hits + HISTORY_WEIGHT * history) / (now + HISTORY_WEIGHT))
            weights.append(tried + now + UNSEEN_WEIGHT)
        return isotonic(rates, weights)

    def _fold(self, group: int, interval: int, tried: float, accepted: float) -> None:
        total = self._history.tried[group][interval] + tried
        scale = min(1.0, HISTORY_LIMIT / total) if total else 1.0
        self._history.tried[group][interval] = total * scale
        self._history.accepted[group][interval] = (self._history.accepted[group][interval] + accepted) * scale


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The closest non-decreasing sequence in weighted least squares, by pooling adjacent violators."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = blocks[-2:]
            total = low_weight + high_weight
            pooled = (low * low_weight + high * high_weight) / total
            blocks[-2:] = [(pooled, total, low_size + high_size)]
    return [value for value, _, size in blocks for _ in range(size)]


_BIN_CENTRES = [(low + high) / 2 for low, high in zip((0.0, *BIN_EDGES), (*BIN_EDGES, 1.0), strict=True)]


def _interval(confidence: float) -> int:
    return sum(confidence >= edge for edge in BIN_EDGES)


def _group(depth: int) -> int:
    return sum(depth >= edge for edge in DEPTH_EDGES)
