"""The suffix drafter: what followed the last tokens earlier in the request, and in earlier answers of its batch.

After SuffixDecoding (arXiv:2411.04975): earlier occurrences of the context's suffix vote for their continuations, which
are expanded best first into a tree. The text of the request and the answers of the batch vote together; the longer an
occurrence matches, the more its vote counts.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Sequence

from worker.engine.drafters.protocol import DraftContext, DraftLimits, TextDrafter
from worker.engine.drafters.sorted_places import DEPTH, NONE, Occurrence, SortedPlaces
from worker.engine.shared_prefix import shared_prefix
from worker.engine.tree import TokenTree

# Of the request's text, and as many of the batch's answers.
MAX_OCCURRENCES = 24
MIN_VALUE = 0.02


def reliability(match: int) -> float:
    """A first guess at the probability that text goes on as it did after `match` equal tokens.

    Only its order matters in the long run: calibration replaces the scale by what was observed.
    """
    return _RELIABILITY[min(match, DEPTH)]


_RELIABILITY = [1 - 0.8 * 0.8**match for match in range(DEPTH + 1)]


class SuffixDrafter(TextDrafter):
    """Guesses from the request's own tokens and, where the context has them, from the outputs of its batch."""

    name = "suffix"

    def __init__(self) -> None:
        self._text = SortedPlaces()
        self._text.begin()

    def prefill(self, prompt: Sequence[int]) -> None:
        """What the tokens of before share with `prompt` stays in order: a long shared prefix costs a comparison."""
        shared = shared_prefix(self._text.tokens[DEPTH:], prompt)
        self._text.keep(0, DEPTH + shared)
        self.commit(prompt[shared:])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        last = self._last_tokens()
        assert not last or tree.tokens[0] == last[-1], "the root is the last committed token"
        occurrences = self._text.nearest(last, MAX_OCCURRENCES)
        if context.outputs is not None:
            occurrences += context.outputs.nearest(last, MAX_OCCURRENCES)
        _expand(tree, limits, occurrences)

    def _last_tokens(self) -> array[int]:
        tokens = self._text.tokens
        return tokens[max(DEPTH, len(tokens) - DEPTH) :]


def _expand(tree: TokenTree, limits: DraftLimits, occurrences: list[Occurrence]) -> None:
    """Add what followed `occurrences`, the most promising node first."""
    order = itertools.count()
    frontier = [(-1.0, next(order), 0, NONE, 1.0, occurrences)]
    while frontier and len(tree) < limits.nodes:
        value, _, parent, token, confidence, voters = heapq.heappop(frontier)
        node = 0 if token == NONE else tree.add(parent, token, confidence)
        depth = tree.depths[node]
        if depth == limits.depth:
            continue
        for child, share, group in _votes(voters, depth):
            confidence = share * reliability(max(one.match for one in group) + depth)
            if -value * confidence >= MIN_VALUE:
                heapq.heappush(frontier, (value * confidence, next(order), node, child, confidence, group))


def _votes(occurrences: list[Occurrence], depth: int) -> list[tuple[int, float, list[Occurrence]]]:
    """Continuations at `depth` tokens after the match: token, its share of the vote, who voted for it.

    An answer that had ended by then votes against them all. A match counts twice as much as one a token shorter.
    """
    voters: dict[int, list[Occurrence]] = {}
    for one in occurrences:
        if one.start + depth < len(one.tokens):
            voters.setdefault(one.tokens[one.start + depth], []).append(one)
    weights = {token: sum(1 << one.match for one in group) for token, group in voters.items()}
    total = sum(weights.values())
    return [(token, weights[token] / total, group) for token, group in voters.items() if token != NONE]
