"""Expansion: a tree that grows level by level out of a drafter's own probabilities.

A node's value is the product of the confidences down to it, an estimate that the target accepts the whole path
(EAGLE-2, arXiv:2406.16858, section 4.1). Each level asks the drafter about the best nodes of the level before; of all
nodes, the most valuable ones that the limits leave room for are drafted. A level costs the drafter a pass, so growth
ends as soon as nothing that could still come would be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from worker.engine.drafters.guide import Guide
from worker.engine.drafters.next_tokens import NextTokens
from worker.engine.drafters.options import Options
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

# A pass verifies 32 nodes at most, the pending token among them.
MOST_DRAFTED = 31

Follow = Callable[[TokenTree, Sequence[int]], Sequence[NextTokens]]
"""follow(tree, level): what the drafter expects after each node of `level`, the nodes of one depth. Every node above
them was in an earlier level of the same tree."""


@dataclass(frozen=True)
class Expansion:
    """How a tree grows.

    depth: tokens after the root, and passes of the drafter, at most. beam: nodes of a level that are followed.
    children: guesses after one node. min_value: guesses of a smaller value are neither drafted nor followed.
    """

    depth: int
    beam: int
    children: int
    min_value: float

    def __post_init__(self) -> None:
        assert min(self.depth, self.beam, self.children) >= 1
        assert 0 < self.min_value < 1

    def asked(self, options: Options) -> Expansion:
        """This one with the depth and beam that a user asked for. Raises ModelError."""
        depth = options.integer("depth", self.depth, 1, MOST_DRAFTED)
        return replace(self, depth=depth, beam=options.integer("beam", self.beam, 1, MOST_DRAFTED))


def expand(tree: TokenTree, limits: DraftLimits, shape: Expansion, guide: Guide, follow: Follow) -> None:
    """Draft below the root of `tree`, which has no other node yet; the most valuable guesses are added first."""
    assert len(tree) == 1
    grown = TokenTree(tree.tokens[0])
    room = limits.nodes - 1
    level = [0]
    tree.passes = 0
    for depth in range(1, min(shape.depth, limits.depth) + 1):
        floor = _floor(grown, room)
        level = [node for node in level if grown.values[node] > floor]
        if not level:
            break
        tree.passes += 1
        fresh: list[int] = []
        for node, expected in zip(level, follow(grown, level), strict=True):
            for token, confidence in guide.candidates(expected.logprobs, depth, shape.children, expected.ids):
                if grown.values[node] * confidence >= shape.min_value:
                    fresh.append(grown.add(node, token, confidence))
        level = _best(grown, fresh, shape.beam)
    _graft(tree, grown, _best(grown, range(1, len(grown)), room))


def _floor(grown: TokenTree, room: int) -> float:
    """The value that a node, and so its parent, has to exceed to be drafted after all that have grown."""
    if room < 1:
        return 1.0
    if len(grown) - 1 < room:
        return 0.0
    return grown.values[_best(grown, range(1, len(grown)), room)[-1]]


def _best(grown: TokenTree, nodes: Iterable[int], count: int) -> list[int]:
    """The `count` most valuable of `nodes`, the earlier first where equal: a parent comes before its children."""
    return sorted(nodes, key=lambda node: (-grown.values[node], node))[: max(0, count)]


def _graft(tree: TokenTree, grown: TokenTree, nodes: Sequence[int]) -> None:
    """Add `nodes` of `grown` to `tree`; their parents are among them, and earlier."""
    places = {0: 0}
    for node in nodes:
        places[node] = tree.add(places[grown.parents[node]], grown.tokens[node], grown.confidences[node])
