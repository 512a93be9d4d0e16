"""Calibration: from a drafter's confidence to the probability that its guess is accepted.

Outcomes are counted per depth group and confidence bin, made monotone in confidence (isotonic regression), and learned
while decoding. A text that suits the drafter better or worse than those before lifts or lowers all bins at once, as a
bias that follows the outcomes (logistic regression, one step per outcome). Every pass teaches, also one that verified
no draft: a draft is followed for as long as the text goes along with it, also by the passes after its own, so a drafter
that was not trusted can show that it is better now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log
from typing import Any, get_args

from worker.engine.drafters.guide import Mode
from worker.engine.isotonic import isotonic
from worker.engine.tree import TokenTree

BIN_EDGES = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
DEPTH_EDGES = (2, 4, 8)
BINS, GROUPS = len(BIN_EDGES) + 1, len(DEPTH_EDGES) + 1
PRIOR_WEIGHT = 4.0
# What was never tried bends to what was, when both are made monotone.
UNSEEN_WEIGHT = 0.1
# A request's own outcomes outweigh the worker's history after about this many of them.
HISTORY_WEIGHT = 6.0
HISTORY_LIMIT = 400.0
LIFT_RATE = 0.15


class _Counts:
    """Tried and accepted guesses per depth group and confidence bin."""

    def __init__(self) -> None:
        self.tried = [[0.0] * BINS for _ in range(GROUPS)]
        self.accepted = [[0.0] * BINS for _ in range(GROUPS)]

    def add(self, group: int, interval: int, accepted: bool) -> None:
        self.tried[group][interval] += 1
        self.accepted[group][interval] += accepted


class _Rates:
    """How often the guesses of one source were accepted. Source: a drafter, or several that guessed the same."""

    def __init__(self) -> None:
        self.history = _Counts()
        self.request = _Counts()
        self._tables: list[list[float] | None] = [None] * GROUPS
        self._lift = 0.0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Rates:
        """What `record` gave. Raises ValueError, KeyError or TypeError for anything else."""
        rates = cls()
        tried, accepted = (_rows(record[name]) for name in ("tried", "accepted"))
        for group, interval in _places():
            if not 0 <= accepted[group][interval] <= tried[group][interval] <= HISTORY_LIMIT + 1e-6:
                raise ValueError(f"accepted[{group}][{interval}] or the guesses that were tried are no counts")
        rates.history.tried, rates.history.accepted = tried, accepted
        return rates

    @property
    def record(self) -> dict[str, list[list[float]]]:
        """All that was learned."""
        whole = _Counts()
        for group, interval in _places():
            tried, accepted = self._folded(group, interval)
            whole.tried[group][interval], whole.accepted[group][interval] = tried, accepted
        return {"tried": whole.tried, "accepted": whole.accepted}

    def start_request(self) -> None:
        """Fold the last request's outcomes into the history."""
        folded = self.record
        self.history.tried, self.history.accepted = folded["tried"], folded["accepted"]
        self.request = _Counts()
        self._tables = [None] * GROUPS
        self._lift = 0.0

    def add(self, group: int, interval: int, accepted: bool) -> None:
        self._lift += LIFT_RATE * (accepted - self._expected(group, interval))
        self.request.add(group, interval, accepted)
        self._tables = [None] * GROUPS

    def table(self, group: int) -> list[float]:
        """The probability of acceptance in each confidence bin, non-decreasing."""
        table = self._tables[group]
        if table is None:
            table = self._tables[group] = self._estimate(group)
        return table

    def _estimate(self, group: int) -> list[float]:
        rates, weights = [], []
        for interval in range(BINS):
            now, hits = self.request.tried[group][interval], self.request.accepted[group][interval]
            rates.append((hits + HISTORY_WEIGHT * self._expected(group, interval)) / (now + HISTORY_WEIGHT))
            weights.append(self.history.tried[group][interval] + now + UNSEEN_WEIGHT)
        return isotonic(rates, weights)

    def _expected(self, group: int, interval: int) -> float:
        """What the history says, lifted as this text has been so far."""
        tried, accepted = self.history.tried[group][interval], self.history.accepted[group][interval]
        rate = (accepted + PRIOR_WEIGHT * _BIN_CENTRES[interval]) / (tried + PRIOR_WEIGHT)
        return 1 / (1 + exp(log(1 / rate - 1) - self._lift))

    def _folded(self, group: int, interval: int) -> tuple[float, float]:
        """Tried and accepted guesses of the history and of this request; older ones fade."""
        tried = self.history.tried[group][interval] + self.request.tried[group][interval]
        accepted = self.history.accepted[group][interval] + self.request.accepted[group][interval]
        scale = min(1.0, HISTORY_LIMIT / tried) if tried else 1.0
        return tried * scale, accepted * scale


class Calibration:
    """Acceptance probabilities of a drafter's guesses against one target.

    Of a mixture guesses are counted by who made them and who was asked and did not, see `TokenTree.sources`; those of
    each mode by themselves, as their confidences are not the same quantity. The mode is greedy until a request says.
    """

    def __init__(self) -> None:
        self._modes: dict[Mode, dict[int, _Rates]] = {mode: {} for mode in get_args(Mode)}
        self._rates = self._modes["greedy"]
        self._followed: list[tuple[TokenTree, int]] = []

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Calibration:
        """What `record` gave. Raises ValueError, KeyError, TypeError or AttributeError for anything else."""
        calibration = cls()
        if unknown := set(record) - set(calibration._modes):
            raise ValueError(f"modes {sorted(unknown)}, where {sorted(calibration._modes)} were expected")
        for mode, sources in calibration._modes.items():
            sources.update((int(source), _Rates.of(rates)) for source, rates in record.get(mode, {}).items())
        return calibration

    @property
    def record(self) -> dict[str, dict[str, dict[str, list[list[float]]]]]:
        """All that was learned, for a file: by the mode and the bits of the source."""
        return {
            mode: {str(source): rates.record for source, rates in sources.items()}
            for mode, sources in self._modes.items()
            if sources
        }

    def start_request(self, mode: Mode = "greedy") -> None:
        """Fold the last request's outcomes into the history. mode: of the guesses to come, see `Guide.mode`."""
        for rates in self._rates.values():
            rates.start_request()
        self._rates = self._modes[mode]
        self._followed = []

    def appraise(self, tree: TokenTree) -> None:
        """Set every node's value: the product of calibrated probabilities on its path.

        At most one child of a node is right. What different drafters say of different children, each by itself, may
        come to more than that; it is then scaled down to certainty.
        """
        for node in range(len(tree)):
            children = tree.children(node)
            chances = [self._chance(tree, child) for child in children]
            certain = max(1.0, sum(chances))
            for child, chance in zip(children, chances, strict=True):
                tree.values[child] = tree.values[node] * chance / certain

    def follow(self, tree: TokenTree) -> None:
        """Take another draft of the round that `learn` comes for next."""
        self._followed.append((tree, 0))

    def learn(self, tree: TokenTree, emitted: Sequence[int]) -> None:
        """Take the whole draft of a round, and the tokens that followed its root."""
        self.follow(tree)
        for token in emitted:
            reached = ((draft, self._outcome(draft, node, token)) for draft, node in self._followed)
            self._followed = [(draft, node) for draft, node in reached if node is not None]

    def _outcome(self, tree: TokenTree, node: int, token: int) -> int | None:
        """Count which of a node's children was right; that child, if any."""
        right = tree.child(node, token)
        for child in tree.children(node):
            group, interval = _group(tree.depths[child]), _interval(tree.confidences[child])
            self._rates_of(tree, child).add(group, interval, child == right)
        return right

    def _chance(self, tree: TokenTree, node: int) -> float:
        """That a node is right when its parent is, whatever is beside it."""
        table = self._rates_of(tree, node).table(_group(tree.depths[node]))
        return table[_interval(tree.confidences[node])]

    def _rates_of(self, tree: TokenTree, node: int) -> _Rates:
        return self._rates.setdefault(tree.sources[node], _Rates())


_BIN_CENTRES = [(low + high) / 2 for low, high in zip((0.0, *BIN_EDGES), (*BIN_EDGES, 1.0), strict=True)]


def _interval(confidence: float) -> int:
    return sum(confidence >= edge for edge in BIN_EDGES)


def _group(depth: int) -> int:
    return sum(depth >= edge for edge in DEPTH_EDGES)


def _places() -> list[tuple[int, int]]:
    return [(group, interval) for group in range(GROUPS) for interval in range(BINS)]


def _rows(value: Any) -> list[list[float]]:
    """A table of finite numbers from a file. Raises ValueError or TypeError."""
    rows = [[float(number) for number in row] for row in value]
    if [len(row) for row in rows] != [BINS] * GROUPS or not all(isfinite(number) for row in rows for number in row):
        raise ValueError(f"not {GROUPS} rows of {BINS} numbers")
    return rows
