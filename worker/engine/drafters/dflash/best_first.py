"""The draft tree of largest value from the odds of tokens at each depth.

DDTree (arXiv:2604.12989): guesses wait in a heap by value, the product of odds on their path. Taking one makes room for
two others, its next sibling and its own first child, so n guesses cost n steps, and as no value is above its parent's,
they are the n of largest value. That holds for odds of a slot that depend on the token before it as well.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

Candidates = list[tuple[int, float]]
"""Tokens with their odds, best first."""


def grow(
    tree: TokenTree, limits: DraftLimits, following: Callable[[int, int], Candidates], slots: int, min_value: float
) -> None:
    """Add guesses below the root of `tree` until `limits` or until none is left of at least `min_value`.

    following(token, depth): what may stand at `depth` tokens after the root, 1 to `slots`, after `token`.
    """
    order = itertools.count()
    heap: list[tuple[float, int, int, float, Candidates, int]] = []

    def push(parent: int, above: float, candidates: Candidates, rank: int) -> None:
        if rank < len(candidates) and (value := above * candidates[rank][1]) >= min_value:
            heapq.heappush(heap, (-value, next(order), parent, above, candidates, rank))

    deepest = min(slots, limits.depth)
    if deepest > 0:
        push(0, 1.0, following(tree.tokens[0], 1), 0)
    while heap and len(tree) < limits.nodes:
        value, _, parent, above, candidates, rank = heapq.heappop(heap)
        token, odds = candidates[rank]
        node = tree.add(parent, token, odds)
        push(parent, above, candidates, rank + 1)
        if tree.depths[node] < deepest:
            push(node, -value, following(token, tree.depths[node] + 1), 0)
